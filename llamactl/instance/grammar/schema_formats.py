"""What do the formats of JSON schema look like that can be written character by character? As GBNF, without quotes.

What they allow is always right, and less than all: February has 28 days, and names of hosts have letters only.
"""

_HEX = "[0-9a-fA-F]"
_DATE = (
    '[0-9]{4} "-" (("01" | "03" | "05" | "07" | "08" | "10" | "12") "-" ("0" [1-9] | [12] [0-9] | "3" [01]) | '
    '("04" | "06" | "09" | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02" "-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_HOURS = '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9]'
_TIME = f'{_HOURS} ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | ("+" | "\\x2D") {_HOURS})'
_BYTE = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9]{2} | [1-9] [0-9] | [0-9])'
_HOST = '[a-z] [a-z0-9]{0,20} ("." [a-z] [a-z0-9]{1,20}){1,3}'

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{12}}',
    "ipv4": f'{_BYTE} "." {_BYTE} "." {_BYTE} "." {_BYTE}',
    "email": f'[a-z] [a-z0-9]{{0,20}} ("." [a-z0-9]{{1,20}}){{0,2}} "@" {_HOST}',
}
"""A format that is not here is taken as a description, as the standard has it by default."""
