#pragma once

#include "chat-auto-parser.h"
#include "chat.h"

#include <map>
#include <mutex>

// Of the templates of one handle, by where they lie.
struct known_analyses {
    std::mutex                                                     mutex;
    std::map<const common_chat_template *, autoparser::autoparser> analyses;
};

// As long as it lives, this thread takes what is known, and adds to it.
struct analyses_in_use {
    explicit analyses_in_use(known_analyses & known);
    ~analyses_in_use();

    analyses_in_use(const analyses_in_use &)             = delete;
    analyses_in_use & operator=(const analyses_in_use &) = delete;
};
