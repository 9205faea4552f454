# frozen_string_literal: true

# Serves a Rack application with a fiber for each request, on the application's `async`: `boot`
# calls `prepare` after Bundler has chosen its version, and `serve` after READY. One fiber reads the
# channel and makes a `FiberStream` of each OPEN; a task runs `rack_app`'s own code over it, to
# which it is a slot.
#
# # Invariants
# - A wait here stops its fiber alone.
# - Only `prepare` loads `async`.
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

    # Serves until the server closes the channel, then waits for requests in progress, for at most
    # `stop_timeout` seconds. Raises Wire::Error.
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
      # Two fibers cannot wait for one IO with every version of async: one reads, one writes.
      @writer = UNIXSocket.for_fd(Wire.duplicate_fd(@socket))
      [@files, @socket].each { |io| io.autoclose = false }
      Forks.close_on_fork(@writer)
      @frame_reader = FrameReader.new(@socket, RackEnv.base(@rack_major, multithread: true))
      @streams = {}
      @running = {}
      @out_buffer = String.new
      @is_gathering = @is_blocked = @closed = @shutting_down = @waiting_for_files = false
    end

    # The server has closed the channel. And: requests in progress are being stopped.
    attr_reader :closed, :shutting_down
    # The one that serves.
    attr_reader :thread

    # Reads the channel to its end.
    def serve(stop_timeout)
      @thread = Thread.current
      ThreadStacks.hooks << method(:task_stacks)
      error = nil
      Sync do |task|
        @room_available = Async::Condition.new
        @all_finished = Async::Condition.new
        @write_wanted = Async::Condition.new
        @files_writable = Async::Condition.new
        writer = task.async { write_loop }
        begin
          read_frames(task)
          wait_for_running(task, stop_timeout)
        rescue Wire::Error => error
          nil
        end
        close
        @shutting_down = true
        @running.keys.each(&:stop)
        writer.stop
        # What the application made beside its requests. Version 1 has no `root`.
        (task.respond_to?(:root) ? task.root : task.reactor).stop
      end
      raise error if error
    end

    # Sends a frame, with others if some are being gathered.
    def queue_frame(frame)
      raise Wire::Disconnected if @closed

      @out_buffer << frame
      flush unless @is_gathering
      @room_available.wait while @out_buffer.bytesize > Channel::MAX_OUTBOX_BYTES && !@closed
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
    def remove_stream(stream, task)
      @streams.delete(stream.id) if @streams[stream.id].equal?(stream)
      @running.delete(task)
      @all_finished.signal if @running.empty?
    end

    private

    def read_frames(task)
      while (frames = @frame_reader.receive)
        # Immediate answers leave at once.
        @is_gathering = true
        frames.each { |kind, flags, id, payload| handle_frame(task, kind, flags, id, payload) }
        @is_gathering = false
        flush
      end
    ensure
      close
    end

    def handle_frame(task, kind, flags, id, payload)
      return open_stream(task, flags, id, payload) if kind == Channel::OPEN

      stream = @streams[id] or return
      case kind
      when Channel::STREAM_CANCEL then stream.disconnect
      when Channel::INPUT then stream.add_body_piece(flags, payload)
      else stream.add_window(payload.unpack1("V"))
      end
    end

    def open_stream(task, flags, id, payload)
      raise Wire::Error, "stream #{id} is open already" if @streams[id] && !@streams[id].ended?

      env, body = @frame_reader.parse_open(payload)
      file = receive_file(id) if flags & Channel::FLAG_BODY_FILE != 0
      body = Wire::PartialBody.new(body) if flags & Channel::FLAG_BODY_STREAM != 0
      stream = @streams[id] = FiberStream.new(self, id, env, body, file)
      task.async do |own|
        @running[own] = stream
        FiberApp.new(self, stream, @app, @rack_major).serve
      ensure
        stream.end_if_open
        remove_stream(stream, own)
      end
    end

    # It was sent before the OPEN, with the stream's id: this waits for nothing.
    def receive_file(id)
      Wire.receive_file(@files, [id].pack("V"))
    rescue Wire::Disconnected
      raise Wire::Error, "a body file was promised and did not come"
    end

    def wait_for_running(task, timeout)
      task.with_timeout(timeout) { @all_finished.wait until @running.empty? }
    rescue Async::TimeoutError
      nil
    end

    # Writes what the socket takes; the rest is `write_loop`'s.
    def flush
      return if @is_blocked || @out_buffer.empty? || @closed

      write
      return if @out_buffer.empty?

      @is_blocked = true
      @write_wanted.signal
    end

    def write
      sent = @writer.write_nonblock(@out_buffer, exception: false)
      return if sent == :wait_writable

      @out_buffer = sent == @out_buffer.bytesize ? String.new : @out_buffer.byteslice(sent, @out_buffer.bytesize)
      @room_available.signal if @out_buffer.bytesize <= Channel::MAX_OUTBOX_BYTES
    rescue SystemCallError, IOError
      close
    end

    # The task that waits for the socket to take more.
    def write_loop
      loop do
        @write_wanted.wait until @is_blocked
        until @out_buffer.empty? || @closed
          @writer.wait_writable
          write
        end
        @is_blocked = false
      end
    end

    def close
      return if @closed

      @closed = true
      @room_available.signal
      @running.values.each(&:disconnect)
    end

    # What SIGQUIT shows of the tasks.
    def task_stacks
      @running.keys.first(200).map do |task|
        "#{@running[task].description}\n#{(task.backtrace || []).first(50).map { |line| "    #{line}\n" }.join}"
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
    def log_exception(error, env)
      super unless @reactor.shutting_down && error.is_a?(Async::Stop)
    end
  end
end
