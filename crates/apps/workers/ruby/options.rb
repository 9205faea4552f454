# frozen_string_literal: true

# The command line of a process (`PROTOCOL.md`, "Starting a worker"). `boot` parses it first; it
# needs no library, since none may be loaded before Bundler has chosen its version.
module PenstockWorker
  FLAGS = %w[--template --gc-when-idle --may-become-template --ignore-threads].freeze

  # By name, with defaults.
  Options = Struct.new(
    :control_fd, :slot_fds, :spare_slot_fds, :app, :dir, :entry, :interface, :template, :server_pid, :reactor,
    :channel_fd, :files_fd, :gc_when_idle, :may_become_template, :threads, :stop_timeout, :ignore_threads,
    :hooks, :worker_number
  ) do
    def self.parse(arguments)
      rest = arguments.dup
      flags = FLAGS.to_h { |name| [name, !rest.delete(name).nil?] }
      given = rest.each_slice(2).to_h
      options = new(
        Integer(given.fetch("--control-fd")), numbers(given["--slot-fds"]), numbers(given["--spare-slot-fds"]),
        given.fetch("--app", "app"), given.fetch("--dir", "."), given.fetch("--entry"),
        given.fetch("--interface", "rack"), flags["--template"],
        Integer(given.fetch("--server-pid", Process.ppid)), given["--reactor"],
        given["--channel-fd"]&.to_i, given["--files-fd"]&.to_i, flags["--gc-when-idle"], flags["--may-become-template"],
        Integer(given.fetch("--threads", 1)), Float(given.fetch("--stop-timeout", 10)),
        flags["--ignore-threads"], given["--hooks"], Integer(given.fetch("--worker-number", 0))
      )
      options.check
    rescue KeyError, ArgumentError => error
      abort "usage: worker.rb --control-fd N --slot-fds A,B --entry config.ru [--app NAME] [--dir DIR] " \
            "(#{error.message})"
    end

    def self.numbers(text)
      text.to_s.split(",").map { |fd| Integer(fd) }
    end

    def check
      return self if template || !slot_fds.empty? || (reactor && channel_fd && files_fd)

      raise ArgumentError, "one of --template, --slot-fds, --reactor with its sockets is needed"
    end
  end
end
