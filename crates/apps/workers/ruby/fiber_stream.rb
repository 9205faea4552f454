# frozen_string_literal: true

# One request of `fiber_reactor`, with the methods of `wire`'s `Slot` by which `rack_app` answers.
#
# # Invariants
# - The stream ends once.
# - A wait for window stops this fiber alone, and ends with `Disconnected` when the client leaves.
module PenstockWorker
  # See above.
  class FiberStream
    attr_reader :id

    def initialize(reactor, id, env, body, file)
      @reactor = reactor
      @id = id
      @request = [env, file ? nil : body]
      @env = env
      @description = "#{env["REQUEST_METHOD"]} #{env["PATH_INFO"]}"
      @file = file
      @window = Channel::WINDOW_BYTES
      @disconnected = @ended = @is_pull_pending = @has_started_response = @hijacked = false
    end

    attr_reader :description

    def ended?
      @ended
    end

    # This many more bytes may be sent.
    def add_window(bytes)
      @window += bytes
      @change_condition&.signal
    end

    # The client has left, or wants no more.
    def disconnect
      @disconnected = true
      @change_condition&.signal
    end

    # The next piece of the body has come.
    def add_body_piece(flags, piece)
      raise Wire::Error, "a piece of a body that nobody asked for" unless @is_pull_pending

      @is_pull_pending = false
      @body_piece = [piece, flags & Wire::FLAG_END != 0]
      @change_condition&.signal
    end

    def body_puller
      method(:pull)
    end

    # Waits for the next piece of the body: its bytes, and whether it is the last. Nil when the rest
    # never comes, or the response has ended.
    def pull
      until @body_piece
        return if @disconnected || @ended

        unless @is_pull_pending
          @is_pull_pending = true
          @reactor.queue_frame(Channel.encode_pull(@id))
        end
        wait_for_change unless @body_piece
      end
      piece = @body_piece
      @body_piece = nil
      piece
    end

    # Whether the application answers by itself.
    attr_reader :hijacked

    # Which thread it is does not matter: each request has an object of its own.
    def bind_thread; end

    # As a slot's. The channel belongs to the reactor's thread.
    def hijack
      unless @reactor.thread.equal?(Thread.current)
        raise IOError, "the connection cannot be hijacked: this is another thread than the call's"
      end
      return @env["rack.hijack_io"] if @hijacked && @env

      check_hijack
      ours, theirs = UNIXSocket.pair
      send_hijack(ours, theirs)
      @env["rack.hijack_io"]
    ensure
      theirs&.close
      ours.close if ours && !ours.equal?(@env && @env["rack.hijack_io"])
    end

    def hijacker
      method(:hijack)
    end

    def end_hijacked_call
      @env = nil
    end

    # The request, once.
    def receive
      request = @request
      @request = nil
      request
    end

    def receive_file
      @file
    end

    def cancelled?
      @disconnected
    end

    # Its frames leave whole: the reactor sends them. Other fibers run meanwhile, interrupts too.
    def uninterrupted
      yield
    end

    def send_whole(count, head, started, body)
      mark_ended
      @reactor.queue_frame(Channel.encode_response(@id, Wire::FLAG_END, count, Wire.micros - started, head, body))
    end

    def send_head(count, head, started, body)
      @has_started_response = true
      first = body.bytesize > Channel::MAX_DATA_BYTES ? body.byteslice(0, Channel::MAX_DATA_BYTES) : body
      @window -= first.bytesize
      @reactor.queue_frame(Channel.encode_response(@id, Wire::FLAG_STREAM, count, Wire.micros - started, head, first))
      send_body(body.byteslice(first.bytesize, body.bytesize)) if first.bytesize < body.bytesize
    end

    def send_body(chunk)
      at = 0
      while at < chunk.bytesize
        size = [chunk.bytesize - at, Channel::MAX_DATA_BYTES, @window].min
        next wait_for_window unless size.positive?

        @window -= size
        @reactor.queue_frame(Channel.encode_data(@id, 0, chunk.byteslice(at, size)))
        at += size
      end
    end

    def send_end
      mark_ended
      @reactor.queue_frame(Channel.encode_data(@id, Wire::FLAG_END, ""))
    end

    # Reads what a slot passes as a descriptor: the channel carries bytes only.
    def send_file(count, head, started, file, offset, length)
      left = [file.size - offset, 0].max
      left = length if length != Wire::UNTIL_END && length < left
      file.seek(offset)
      return send_whole(count, head, started, file.read(left) || "") if left <= Channel::MAX_DATA_BYTES

      send_head(count, head, started, "")
      while left.positive? && (piece = file.read([left, Channel::MAX_DATA_BYTES].min))
        left -= piece.bytesize
        send_body(piece)
      end
      send_end
    end

    # Sends RESET.
    def send_failure(_kind, flags, reason)
      mark_ended
      @reactor.queue_frame(Channel.encode_reset(@id, flags, reason))
    end

    # Ends what has not ended yet.
    def end_if_open
      @file&.close
      return if @ended || @reactor.closed

      send_failure(Channel::RESET, 0, @disconnected ? "cancelled" : "the response is not complete")
    end

    private

    def check_hijack
      return unless @has_started_response || @ended

      raise IOError, "the connection cannot be hijacked: its response has begun"
    end

    # While this waits, a response may begin, or another fiber of the request's may hijack.
    def send_hijack(ours, theirs)
      deadline = Wire.micros + (Channel::FILES_TIMEOUT * 1e6)
      until @reactor.send_socket(@id, theirs)
        @reactor.wait_for_files([(deadline - Wire.micros) / 1e6, 0].max)
        check_hijack
        return if @hijacked
      end
      @hijacked = true
      @env["rack.hijack_io"] = ours
      @reactor.queue_frame(Channel.encode_hijack(@id))
    end

    def wait_for_window
      wait_for_change
      raise Wire::Disconnected if @disconnected
    end

    def wait_for_change
      @change_condition ||= Async::Condition.new
      @change_condition.wait unless @disconnected
    end

    def mark_ended
      @ended = true
      # A fiber of the application's may wait for more of the body.
      @change_condition&.signal
    end
  end
end
