# frozen_string_literal: true

# `rack.input`: the request body, complete before the application sees it, or as it comes.
# `rack_app` calls `open` once a request. A body in memory becomes a StringIO of its own; a larger
# one is an unlinked temporary file
# that the server passes as a descriptor. Both are binary, end by themselves, and can be rewound, as
# Rack 2 asks. One that still comes (`request_buffering = false`) is read from the server piece by
# piece, and a read waits for its client; with Rack 2 what was read is kept in a file, to be
# rewound.
#
# What must stay true: a body that was cut raises, each time it is read, and never looks complete.
module PenstockWorker
  # Raised by reads of a body whose rest never comes.
  class BodyCut < IOError
    def initialize(message = "the request body was cut: its client has left, or is refused")
      super
    end
  end

  # Where request bodies come from.
  module Input
    module_function

    # The stream for a body of which `Slot#receive` did not give all; the caller closes it.
    def open(slot, body, rack_major)
      return slot.receive_file.binmode unless body

      pulled = PulledBody.new(slot.puller, body)
      rack_major < 3 ? RewindableBody.new(pulled) : pulled
    end
  end

  # Reads as Rack wants them, over what a class has of its own: `readpartial`.
  module BodyReads
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
      @line ||= String.new
      until (at = @line.index("\n"))
        begin
          @line << next_bytes(PIECE_BYTES)
        rescue EOFError
          return @line.empty? ? nil : take_line(@line.bytesize)
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
      bytes = @line && !@line.empty? ? take_line([most, @line.bytesize].min) : next_bytes(most)
      buffer ? buffer.replace(bytes) : bytes
    end

    PIECE_BYTES = 64 << 10
    private_constant :PIECE_BYTES

    private

    def take_line(size)
      @line.slice!(0, size)
    end
  end

  # A body that still comes. `pull` waits for its next piece.
  class PulledBody
    include BodyReads

    def initialize(pull, first)
      @pull = pull
      @piece = String.new(first)
      @last = @cut = false
    end

    def close
      @cut = true
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
      raise BodyCut if @cut
      raise EOFError, "the end of the request body" if @last

      pulled = begin
        @pull.call
      rescue Wire::Disconnected
        nil
      end
      @cut = pulled.nil?
      raise BodyCut if @cut

      @piece, @last = pulled
    end
  end

  # The same, kept in a file as it is read.
  class RewindableBody
    include BodyReads

    def initialize(body)
      @body = body
      @at = @size = 0
    end

    def rewind
      @at = 0
      @line = nil
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

      if @at < @size
        bytes = @file.pread([most, @size - @at].min, @at)
      else
        bytes = @body.next_bytes(most)
        keep(bytes)
      end
      @at += bytes.bytesize
      bytes
    end

    private

    def keep(bytes)
      @file ||= nameless_file
      @file.pwrite(bytes, @size)
      @size += bytes.bytesize
    end

    def nameless_file
      require "tempfile"
      file = Tempfile.create("penstock", binmode: true)
      File.unlink(file.path)
      file
    end
  end
end
