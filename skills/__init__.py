"""Agent Skills, Markdown only: data of trnprof.skill_library, which lists, installs and checks them."""
