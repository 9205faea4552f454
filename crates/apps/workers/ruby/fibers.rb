# frozen_string_literal: true

# Serves a Rack application with a fiber for each request, on the `async` of the application: `boot` calls `prepare`
# after Bundler has chosen its version, and `serve` after READY. One fiber reads the channel and makes a
# `FiberStream` of each OPEN; a task runs `rack_app`'s own way to answer over it: to `rack_app` it is a slot.
#
# What must stay true: whatever waits here waits in its fiber alone; `async` is loaded by nothing but `prepare`.
module PenstockWorker
  # See above.
  module Fibers
    module_function

    # Loads the scheduler. Raises LoadError when there is none.
    def prepare
      unless Fiber.respond_to?(:set_scheduler)
        raise LoadError, "async = true needs Ruby 3.0 or newer, this is #{RUBY_VERSION}"
      end

      require "async"
      require "io/wait"
    rescue LoadError => error
      raise unless error.path == "async"

      raise LoadError, "async = true needs the gem async, which is not installed for #{RbConfig.ruby}, " \
                       "or not in this application's Gemfile", cause: nil
    end

    # Serves until the server closes the channel, then waits for what is in progress, for at most `stop_timeout`
    # seconds. Raises Wire::Error.
    def serve(channel_fd, files_fd, app, options)
      prepare
      timeout = options.stop_timeout
      FiberReactor.new(channel_fd, files_fd, app).serve(timeout ? Float(timeout) : 10.0)
    end
  end

  # The channel and its streams.
  class FiberReactor
    def initialize(channel_fd, files_fd, app)
      @app = app
      @rack_major = Rack.release.to_i
      @files = UNIXSocket.for_fd(files_fd)
      @socket = UNIXSocket.for_fd(channel_fd)
      # Two fibers cannot wait for one IO with every version of async: one for what comes, one for what leaves.
      @writer = UNIXSocket.for_fd(Wire.duplicate(@socket))
      [@files, @socket].each { |io| io.autoclose = false }
      Forks.guard(@writer)
      @inbox = Inbox.new(@socket, RackEnv.base(@rack_major, multithread: true))
      @streams = {}
      @running = {}
      @out = String.new
      @gathering = @blocked = @closed = @ending = @waiting_for_files = false
    end

    # No more is to be sent: the server has closed the channel. And: what is still in progress is stopped.
    attr_reader :closed, :ending
    # The one that serves.
    attr_reader :thread

    # Reads the channel to its end.
    def serve(stop_timeout)
      @thread = Thread.current
      Stacks.hooks << method(:stacks)
      error = nil
      Sync do |task|
        @room = Async::Condition.new
        @idle = Async::Condition.new
        @wanted = Async::Condition.new
        @files_writable = Async::Condition.new
        writer = task.async { write_on }
        begin
          read(task)
          wait_for_running(task, stop_timeout)
        rescue Wire::Error => error
          nil
        end
        close
        @ending = true
        @running.keys.each(&:stop)
        writer.stop
        # What the application made beside its requests. Version 1 has no `root`.
        (task.respond_to?(:root) ? task.root : task.reactor).stop
      end
      raise error if error
    end

    # Sends a frame, with others if some are being gathered.
    def put(frame)
      raise Wire::Disconnected if @closed

      @out << frame
      flush unless @gathering
      @room.wait while @out.bytesize > Channel::OUT_MAX && !@closed
    end

    # Sends the socket of a HIJACK, before that. False when the server must receive others first.
    def send_socket(id, socket)
      rights = Socket::AncillaryData.unix_rights(socket)
      @files.sendmsg_nonblock([id].pack("V"), 0, nil, rights, exception: false) != :wait_writable
    rescue SystemCallError, IOError
      raise Wire::Disconnected
    end

    # Returns when more sockets may be sent: the server receives one when it reads its HIJACK frame,
    # which leaves meanwhile. One fiber waits for the socket, the others for that fiber. Raises
    # Disconnected after `timeout` seconds.
    def wait_for_files(timeout)
      Async::Task.current.with_timeout(timeout) do
        next @files_writable.wait if @waiting_for_files

        begin
          @waiting_for_files = true
          @files.wait_writable
        ensure
          @waiting_for_files = false
          @files_writable.signal
        end
      end
    rescue Async::TimeoutError
      raise Wire::Disconnected
    end

    # The task of this stream ends.
    def forget(stream, task)
      @streams.delete(stream.id) if @streams[stream.id].equal?(stream)
      @running.delete(task)
      @idle.signal if @running.empty?
    end

    private

    def read(task)
      while (frames = @inbox.receive)
        # What is answered at once leaves at once.
        @gathering = true
        frames.each { |kind, flags, id, payload| take(task, kind, flags, id, payload) }
        @gathering = false
        flush
      end
    ensure
      close
    end

    def take(task, kind, flags, id, payload)
      return open(task, flags, id, payload) if kind == Channel::OPEN

      stream = @streams[id] or return
      case kind
      when Channel::GONE then stream.leave
      when Channel::INPUT then stream.take(flags, payload)
      else stream.give(payload.unpack1("V"))
      end
    end

    def open(task, flags, id, payload)
      raise Wire::Error, "stream #{id} is open already" if @streams[id] && !@streams[id].ended?

      env, body = @inbox.opened(payload)
      file = receive_file(id) if flags & Channel::FLAG_BODY_FILE != 0
      body = Wire::FirstPart.new(body) if flags & Channel::FLAG_BODY_STREAM != 0
      stream = @streams[id] = FiberStream.new(self, id, env, body, file)
      task.async do |own|
        @running[own] = stream
        FiberApp.new(self, stream, @app, @rack_major).serve
      ensure
        stream.end_anyhow
        forget(stream, own)
      end
    end

    # It was sent before the OPEN, with the stream's id: this waits for nothing.
    def receive_file(id)
      Wire.receive_file(@files, [id].pack("V"))
    rescue Wire::Disconnected
      raise Wire::Error, "a body file was promised and did not come"
    end

    def wait_for_running(task, timeout)
      task.with_timeout(timeout) { @idle.wait until @running.empty? }
    rescue Async::TimeoutError
      nil
    end

    # Writes what the socket takes; the rest is `write_on`'s.
    def flush
      return if @blocked || @out.empty? || @closed

      write
      return if @out.empty?

      @blocked = true
      @wanted.signal
    end

    def write
      sent = @writer.write_nonblock(@out, exception: false)
      return if sent == :wait_writable

      @out = sent == @out.bytesize ? String.new : @out.byteslice(sent, @out.bytesize)
      @room.signal if @out.bytesize <= Channel::OUT_MAX
    rescue SystemCallError, IOError
      close
    end

    # The task that waits for the socket to take more.
    def write_on
      loop do
        @wanted.wait until @blocked
        until @out.empty? || @closed
          @writer.wait_writable
          write
        end
        @blocked = false
      end
    end

    def close
      return if @closed

      @closed = true
      @room.signal
      @running.values.each(&:leave)
    end

    # What SIGQUIT shows of the tasks.
    def stacks
      @running.keys.first(200).map do |task|
        "#{@running[task].label}\n#{(task.backtrace || []).first(50).map { |line| "    #{line}\n" }.join}"
      end.join
    end
  end

  # One request's application runner.
  class FiberApp < RackApp
    def initialize(reactor, stream, app, rack_major)
      super(stream, app, rack_major)
      @reactor = reactor
    end

    private

    # Not what was stopped because the process ends.
    def report(error, env)
      super unless @reactor.ending && error.is_a?(Async::Stop)
    end
  end
end
