# frozen_string_literal: true

# Entry of the Ruby worker by hand: `ruby worker.rb --control-fd 3 --slot-fds 4 --entry config.ru`.
# In a bundle this file comes last, the others are loaded already, and the stub calls `main`.
#
# `boot` loads the application (`entry` finds it without a rackup file), `rack_app` runs requests,
# `native` loads the part in C that does this faster, `response` and `streaming_body` send the
# responses, `rack_env` completes environments, `request_body` makes streams of request bodies,
# `wire` has the frames described in `crates/wire/PROTOCOL.md`. `template` forks workers from a
# process that has loaded the code (by `forks`), and `hooks` has the blocks that are called around
# that. `slot_threads` are the threads of a worker, `idle_gc` collects its garbage, `thread_stacks`
# dumps its stacks, `threads` tells whether it may be forked. `fiber_reactor` is the reactor.
# Applications call `PenstockWorker.prevent_fork`: see `api`.

unless defined?(PenstockWorker)
  require_relative "api"
  require_relative "options"
  require_relative "wire"
  require_relative "forks"
  require_relative "thread_stacks"
  require_relative "idle_gc"
  require_relative "request_body"
  require_relative "rack_env"
  require_relative "streaming_body"
  require_relative "threads"
  require_relative "response"
  require_relative "native"
  require_relative "rack_app"
  require_relative "channel"
  require_relative "fiber_stream"
  require_relative "fiber_reactor"
  require_relative "hooks"
  require_relative "template"
  require_relative "slot_threads"
  require_relative "entry"
  require_relative "boot"
end

exit PenstockWorker.main(ARGV) if $PROGRAM_NAME == __FILE__
