# frozen_string_literal: true

# `rack.input`: the request body, complete before the application sees it, or as it arrives.
# `rack_app` calls `open` once a request. A body in memory becomes a StringIO of its own; a larger
# one is an unlinked temporary file that the server passes as a descriptor. Both are binary, end by
# themselves, and can be rewound, as Rack 2 asks. One that still arrives (`request_buffering =
# false`) is read from the server piece by piece, and a read waits for its client; with Rack 2 the
# bytes read are kept in a file, to be rewound.
#
# # Invariants
# - A body that was cut raises on each read, and never looks complete.
module PenstockWorker
  # Raised by reads of a body whose rest never comes.
  class RequestBodyCut < IOError
    def initialize(message = "the request body was cut: its client has left, or is refused")
      super
    end
  end

  # Opens request bodies.
  module RequestBody
    module_function

    # The stream for a body; `Slot#receive` may not have returned all of it. The caller closes it.
    def open(slot, body, rack_major)
      return slot.receive_file.binmode unless body

      pulled = StreamedBody.new(slot.body_puller, body)
      rack_major < 3 ? RewindableBody.new(pulled) : pulled
    end
  end

  # Reads as Rack wants them, over a class's own `readpartial`.
  module RackInputMethods
    # All that is left; or so many bytes, fewer at the end, and then nil.
    def read(length = nil, buffer = nil)
      whole = String.new
      begin
        until length == whole.bytesize
          whole << readpartial(length ? length - whole.bytesize : PIECE_BYTES)
        end
      rescue EOFError
        whole = nil if length && length.positive? && whole.empty?
      end
      return whole unless buffer

      buffer.replace(whole || "")
      whole && buffer
    end

    # The next line, nil at the end.
    def gets
      @line_buffer ||= String.new
      until (at = @line_buffer.index("\n"))
        begin
          @line_buffer << next_bytes(PIECE_BYTES)
        rescue EOFError
          return @line_buffer.empty? ? nil : take_line(@line_buffer.bytesize)
        end
      end
      take_line(at + 1)
    end

    def each
      return to_enum unless block_given?

      while (line = gets)
        yield line
      end
      self
    end

    # At least a byte, at most so many. Raises EOFError at the end.
    def readpartial(most, buffer = nil)
      bytes = @line_buffer && !@line_buffer.empty? ? take_line([most, @line_buffer.bytesize].min) : next_bytes(most)
      buffer ? buffer.replace(bytes) : bytes
    end

    PIECE_BYTES = 64 << 10
    private_constant :PIECE_BYTES

    private

    def take_line(size)
      @line_buffer.slice!(0, size)
    end
  end

  # A body that still arrives. `pull` waits for its next piece.
  class StreamedBody
    include RackInputMethods

    def initialize(pull, first)
      @pull = pull
      @piece = String.new(first)
      @is_last = @is_aborted = false
    end

    def close
      @is_aborted = true
    end

    # At least a byte, at most so many. Raises EOFError at the end.
    def next_bytes(most)
      return "" if most.zero?

      pull_next while @piece.empty?
      return @piece.slice!(0, most) if most < @piece.bytesize

      piece = @piece
      @piece = String.new
      piece
    end

    private

    def pull_next
      raise RequestBodyCut if @is_aborted
      raise EOFError, "the end of the request body" if @is_last

      pulled = begin
        @pull.call
      rescue Wire::Disconnected
        nil
      end
      @is_aborted = pulled.nil?
      raise RequestBodyCut if @is_aborted

      @piece, @is_last = pulled
    end
  end

  # The same, kept in a file as it is read.
  class RewindableBody
    include RackInputMethods

    def initialize(body)
      @body = body
      @position = @size = 0
    end

    def rewind
      @position = 0
      @line_buffer = nil
      0
    end

    def size
      nil while next_bytes(1 << 16)
    rescue EOFError
      @size
    end

    def close
      @body.close
      @file&.close
    end

    # At least a byte, at most so many. Raises EOFError at the end.
    def next_bytes(most)
      return "" if most.zero?

      if @position < @size
        bytes = @file.pread([most, @size - @position].min, @position)
      else
        bytes = @body.next_bytes(most)
        append_to_file(bytes)
      end
      @position += bytes.bytesize
      bytes
    end

    private

    def append_to_file(bytes)
      @file ||= temp_file
      @file.pwrite(bytes, @size)
      @size += bytes.bytesize
    end

    def temp_file
      require "tempfile"
      file = Tempfile.create("penstock", binmode: true)
      File.unlink(file.path)
      file
    end
  end
end
