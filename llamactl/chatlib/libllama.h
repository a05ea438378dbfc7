#pragma once

#include <string>

// Looks up what this library calls of libllama in `library`, a handle of dlopen. The names that it lacks; empty: none.
std::string bind_libllama(void * library);
