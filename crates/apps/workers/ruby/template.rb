# frozen_string_literal: true

# A process from which workers are forked, and the first steps of such a worker. `boot` calls
# `serve` in a process that has loaded the application: it answers FORK after FORK on the control
# socket (`PROTOCOL.md`), and returns only in a new worker, with the sockets that this one got.
# `Sockets` are those that a worker serves on, forked or not.
#
# # Invariants
# - Nothing of the template is left open in a worker but what the application has opened.
# - The template's standard output and error stay its own.
module PenstockWorker
  # What the server gives a worker besides its control socket: IO objects that own their
  # descriptors.
  Sockets = Struct.new(:slots, :spares, :channel, :files) do
    def all
      [*slots, *spares, channel, files].compact
    end
  end

  # What a forked worker begins with; `hook_error` is what a hook raised before the fork.
  NewWorker = Struct.new(:control, :sockets, :worker, :hook_error)

  # See above.
  module Template
    module_function

    # Forks workers as the server wishes. Returns in each of them; here it never does: it ends the
    # process when the server closes `control`.
    def serve(control, server, streams, hooks)
      socket = UNIXSocket.for_fd(control.fileno)
      socket.autoclose = false
      loop do
        frame = Wire.receive_control(socket) or exit!(0)
        kind, flags, payload, files = frame
        unless kind == Wire::FORK && flags.zero? && payload.bytesize == 8 && files.size == 3
          raise Wire::Error, "a template was sent something else than FORK"
        end

        number = payload.unpack1("Q<")
        # The new worker reports it, as any other failure of its boot.
        hook_error = run_before_fork(hooks, number)
        is_worker = Forks.fork_worker do |error|
          socket.write(Wire.frame(Wire::FORK_FAILED, 0, payload + error.message[0, Wire::MAX_REASON_BYTES].scrub.b))
        end
        if is_worker
          control, sockets = begin_worker(files, server, streams)
          return NewWorker.new(control, sockets, HookWorker.new(number, Process.pid), hook_error)
        end

        files.each(&:close)
        hooks.run_anyway(:after_fork_in_template, HookWorker.new(number, nil))
      end
    end

    def run_before_fork(hooks, number)
      hooks.run(:before_fork, HookWorker.new(number, nil))
      Forks.exit_if_forked_by_app
      nil
    rescue Exception => error # rubocop:disable Lint/RescueException
      Forks.exit_if_forked_by_app(error)
      error
    end

    # What descriptors 1 and 2 are now: an application that gives them another meaning while it
    # loads keeps it in its workers.
    def standard_streams
      [file_identity(1), file_identity(2)]
    end

    def begin_worker(files, server, streams)
      Forks.close_guarded
      Process.setpgid(0, 0)
      # All out of the way first: they may have come as 1 or 2 where the application has closed
      # those.
      all = files.map { |file| Wire.adopt_fd(file) }
      control = all[0]
      all.drop(1).each_with_index do |io, at|
        use_stream(io, at + 1) if file_identity(at + 1) == streams[at]
        io.close
      end
      Forks.close_on_fork(control)
      Forks.die_with_server(server)
      PenstockWorker.send_hello(control)
      sockets = receive_sockets(control)
      Forks.close_on_fork(*sockets.all)
      [control, sockets]
    end

    # Makes `number`, 1 or 2, another name of `io`; the objects that stand for it stay as they are.
    def use_stream(io, number)
      IO.for_fd(number, autoclose: false).reopen(io)
    end

    def receive_sockets(control)
      socket = UNIXSocket.for_fd(control.fileno)
      socket.autoclose = false
      found = { "s" => [], "i" => [], "c" => [], "f" => [] }
      loop do
        frame = Wire.receive_control(socket) or exit!(0)
        kind, flags, kinds, files = frame
        unless kind == Wire::SLOTS && flags <= Wire::FLAG_END && kinds.bytesize == files.size
          raise Wire::Error, "a forked worker was sent something else than SLOTS"
        end

        kinds.each_char.zip(files) do |letter, file|
          found.fetch(letter) { raise Wire::Error, "a socket of unknown kind" } << Wire.adopt_fd(file)
        end
        return Sockets.new(found["s"], found["i"], found["c"][0], found["f"][0]) if flags == Wire::FLAG_END
      end
    end

    def file_identity(number)
      stat = IO.for_fd(number, autoclose: false).stat
      [stat.dev, stat.ino]
    rescue SystemCallError
      nil
    end
  end
end
