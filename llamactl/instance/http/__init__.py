"""What can be asked of an instance over HTTP, and how is it answered? Imports all other wings."""
