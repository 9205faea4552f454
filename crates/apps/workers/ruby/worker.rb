# frozen_string_literal: true

# Entry of the Ruby worker by hand: `ruby worker.rb --control-fd 3 --slot-fds 4 --entry config.ru`.
# In a bundle this file comes last, the others are there already, and the stub calls `main`.
#
# `boot` loads the application (`code_file` finds it where there is no rackup file), `rack_app` runs requests, `response` and `stream` send what comes of
# them, `rack_env` completes environments, `input` makes streams of request bodies, `wire` speaks the
# frames described in `crates/wire/PROTOCOL.md`. `template` forks workers from a process that has loaded the
# code (`forks` is how), `crew` keeps a worker's threads, `collector` its garbage, `stacks` shows where it is, `threads` whether it may be forked,
# `api` is for applications, `fibers` the reactor. Standard library only, Ruby 2.7 or newer, Rack 2 or
# 3; nothing of it is installed beside the application.

unless defined?(PenstockWorker)
  require_relative "api"
  require_relative "options"
  require_relative "wire"
  require_relative "forks"
  require_relative "stacks"
  require_relative "collector"
  require_relative "input"
  require_relative "rack_env"
  require_relative "stream"
  require_relative "threads"
  require_relative "response"
  require_relative "rack_app"
  require_relative "channel"
  require_relative "fiber_stream"
  require_relative "fibers"
  require_relative "template"
  require_relative "crew"
  require_relative "code_file"
  require_relative "boot"
end

exit PenstockWorker.main(ARGV) if $PROGRAM_NAME == __FILE__
