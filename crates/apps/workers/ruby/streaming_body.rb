# frozen_string_literal: true

# The stream that a Rack 3 body with `call` writes to. `response` makes one for such a body and ends
# it when the call returns, closed or not: then the request is over and the slot turns to the next.
module PenstockWorker
  # Raised out of a stream's `write` when the client has left.
  class ClientDisconnected < IOError; end

  # The argument of a streaming body's `call` (Rack 3): writes are the response, reads the request.
  class StreamingBodyIO
    def initialize(response, input)
      @response = response
      @input = input
      @closed_write = @closed_read = false
    end

    def write(*chunks)
      chunks.sum do |chunk|
        raise IOError, "closed for writing" if @closed_write
        raise ClientDisconnected, "the client has gone" if @response.cancelled?

        text = chunk.to_s
        @response.send_chunk(text) unless text.empty?
        text.bytesize
      end
    end

    def <<(chunk)
      write(chunk)
      self
    end

    def read(...)
      raise IOError, "closed for reading" if @closed_read

      @input.read(...)
    end

    # The available bytes of the request, at least one. Raises EOFError at its end.
    def readpartial(...)
      raise IOError, "closed for reading" if @closed_read

      @input.readpartial(...)
    end

    def flush
      self
    end

    def close_read
      @closed_read = true
      nil
    end

    def close_write
      @response.finish unless @closed_write
      @closed_write = true
      nil
    end

    def close(_error = nil)
      close_read
      close_write
    end

    def closed?
      @closed_write && @closed_read
    end
  end
end
