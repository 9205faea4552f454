# frozen_string_literal: true

# One Rack response: checks the application's result and chooses how it is sent. `rack_app` calls
# `send`, `fail` when anything raises, and `close` in any case; `streaming_body` writes through it.
#
# # Invariants
# - Nothing is sent twice, and nothing after the end.
# - A head that could split a response is refused here, where the application's mistake can still be
#   named.
module PenstockWorker
  # One response: the application's result, and how much of it was sent.
  class Response
    attr_reader :status, :headers

    def initialize(slot, started, input, rack_major)
      @slot = slot
      @started = started
      @input = input
      @rack_major = rack_major
      @is_head_sent = @is_finished = false
    end

    # Sends the application's result.
    def send(status, headers, body)
      @body = body
      @status = status
      @headers = headers
      hijack = build_head
      if hijack
        send_hijack(hijack)
      elsif body.instance_of?(Array)
        send_array(body)
      elsif body.respond_to?(:to_path) && send_file(body.to_path)
        nil
      elsif body.respond_to?(:to_ary) && (parts = to_array(body))
        send_array(parts)
      elsif body.respond_to?(:each)
        send_each(body)
      elsif body.respond_to?(:call)
        send_call(body)
      else
        raise AppProtocolError, "a body of #{body.class} responds to neither each nor call"
      end
    end

    # The application has hijacked the connection: its result is dropped.
    def finish_hijacked(result)
      @body = result[2] if result.is_a?(Array)
      finish
    end

    # Ends the response after an exception.
    def fail(error)
      return if @is_finished
      return finish if @slot.hijacked

      reason = "application raised #{error.class.name}"
      if @is_head_sent
        send_failure(Wire::ABORT, 0, reason)
      elsif error.is_a?(AppProtocolError)
        send_failure(Wire::FAILED, Wire::FLAG_PROTOCOL_ERROR, error.message)
      else
        send_failure(Wire::FAILED, 0, reason)
      end
    end

    # Closes the body; yields the exception of that.
    def close
      @is_finished = true
      return if @body.instance_of?(Array) || @is_body_closed || !@body.respond_to?(:close)

      @is_body_closed = true
      @body.close
    rescue Exception => error # rubocop:disable Lint/RescueException
      yield error
    end

    # Sends one chunk of a body of unknown length, the head before the first.
    def send_chunk(chunk)
      if @is_head_sent
        @slot.send_body(chunk)
      elsif chunk.bytesize <= Wire::MAX_BODY_FRAME_BYTES
        send_head(chunk)
      else
        send_head("")
        @slot.send_body(chunk)
      end
    end

    # Ends a streamed response.
    def finish
      return if @is_finished

      @slot.uninterrupted do
        @is_finished = true
        @slot.send_end
      end
    end

    # Whether the client has left; then the response is ended too.
    def cancelled?
      return true if @is_finished
      return false unless @slot.cancelled?

      send_failure(Wire::ABORT, 0, "cancelled")
      true
    end

    private

    # Makes the head; returns the value of the header `rack.hijack`.
    def build_head
      status = Integer(@status, exception: false)
      raise AppProtocolError, "status #{@status.inspect}" unless status&.between?(200, 599) || status == 101

      hijack = nil
      strings = [status.to_s]
      @headers.each do |name, value|
        if value.instance_of?(String) && !value.include?("\n")
          strings << name << value unless name.start_with?("rack.")
        elsif name.start_with?("rack.")
          hijack = value if name == "rack.hijack"
        else
          add_multi_value(strings, name, value)
        end
      end
      hijack = hijack_for_101(hijack) if status == 101

      @string_count = strings.size
      @head = Wire.join_head(strings)
      hijack
    rescue ArgumentError, NoMethodError, TypeError => error
      raise AppProtocolError, "bad headers: #{error.message}"
    end

    # A body that writes itself hijacks the connection behind a 101 (Rack 3), as `rack.hijack` does.
    def hijack_for_101(hijack)
      hijack ||= @body if @body.respond_to?(:call) && !@body.respond_to?(:each)
      return hijack if hijack

      raise AppProtocolError, "status 101 without rack.hijack, or a body that responds to call"
    end

    # Several values of one name: an array in Rack 3, lines of one string in Rack 2.
    def add_multi_value(strings, name, value)
      lines = value.is_a?(Array) ? value : value.to_s.split("\n")
      lines = [""] if lines.empty? && !value.is_a?(Array)
      lines.each { |line| strings << name << line.to_s }
    end

    # All of the body, if it can be had at once: Rails has bodies whose `to_ary` returns nil.
    def to_array(body)
      parts = body.to_ary
      # In Rack 3 `to_ary` closes the body itself.
      @is_body_closed = @rack_major >= 3 unless parts.nil?
      parts
    end

    def send_array(parts)
      whole = parts.size == 1 ? checked_chunk(parts[0]) : join_chunks(parts)
      if whole && whole.bytesize <= Wire::MAX_WHOLE_BODY_BYTES
        send_whole(whole)
      else
        send_each(parts)
      end
    end

    def join_chunks(parts)
      return if parts.sum { |part| checked_chunk(part).bytesize } > Wire::MAX_JOIN_BYTES

      parts.each_with_object(String.new) { |part, whole| whole << part.b }
    end

    # What is noted as sent is sent, whatever is raised meanwhile. So it is below.
    def send_whole(body)
      @slot.uninterrupted do
        @is_head_sent = @is_finished = true
        @slot.send_whole(@string_count, @head, @started, body)
      end
    end

    def send_head(chunk)
      @slot.uninterrupted do
        @is_head_sent = true
        @slot.send_head(@string_count, @head, @started, chunk)
      end
    end

    def send_failure(kind, flags, reason)
      @slot.uninterrupted do
        @is_finished = true
        @slot.send_failure(kind, flags, reason)
      end
    end

    def send_each(body)
      declared = declared_length
      body.each do |chunk|
        next if checked_chunk(chunk).empty?

        raise AppProtocolError, "more body than Content-Length" if @is_finished
        # Complete already, as most responses are. The rest is only run.
        next send_whole(chunk) if !@is_head_sent && declared == chunk.bytesize && declared <= Wire::MAX_WHOLE_BODY_BYTES
        return nil if @is_head_sent && cancelled?

        send_chunk(chunk)
      end
      return if @is_finished

      @is_head_sent ? finish : send_whole("")
    end

    def send_call(body)
      send_chunk("")
      body.call(StreamingBodyIO.new(self, @input))
      finish
    rescue ClientDisconnected
      nil
    end

    # A partial hijack: the worker sends the head, and all behind it is the application's, for any
    # time.
    def send_hijack(hijack)
      return send_call(hijack) unless @slot.respond_to?(:hijack)

      io = @slot.hijack
      strings = @head.split("\0", -1)
      lines = strings.drop(1).each_slice(2).map { |name, value| "#{name}: #{value}\r\n" }
      io.write("HTTP/1.1 #{strings[0]} \r\n#{lines.join}\r\n")
      hijack.call(io)
      finish
    end

    # Passes the descriptor if the path is a regular file that can be read.
    def send_file(path)
      file = File.open(path, "rb")
      return false unless file.stat.file?

      length = declared_length || Wire::UNTIL_END
      @slot.uninterrupted do
        @is_head_sent = @is_finished = true
        @slot.send_file(@string_count, @head, @started, file, 0, length)
      end
      true
    rescue SystemCallError
      false
    ensure
      file&.close
    end

    def declared_length
      @headers.each do |name, value|
        next unless name.casecmp?("content-length")

        return value.to_s.match?(/\A[0-9]+\z/) ? value.to_s.to_i : nil
      end
      nil
    end

    def checked_chunk(chunk)
      return chunk if chunk.is_a?(String)

      raise AppProtocolError, "the body holds #{chunk.class}, not String"
    end
  end
end
