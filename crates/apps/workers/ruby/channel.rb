# frozen_string_literal: true

# Frames of a reactor's channel socket: the mirror of `crates/wire`'s channel. `fiber_reactor` reads
# with a `FrameReader` and writes the frames made here. `PROTOCOL.md` ("Reactors") is the contract,
# `vectors/channel*.txt` its examples.
#
# # Invariants
# - A length is compared with its bound before it is used.
# - A frame that the server cannot have meant raises `Wire::Error`, which ends the process.
module PenstockWorker
  # Numbers of the channel, and its frames.
  module Channel
    OPEN = 64
    STREAM_CANCEL = 65
    WINDOW = 66
    INPUT = 69
    STREAM_RESPONSE = 80
    DATA = 81
    RESET = 83
    PULL = 84
    HIJACK = 85

    FLAG_BODY_FILE = 1
    FLAG_BODY_STREAM = 4

    # Bytes that a stream may send before it gets more window.
    WINDOW_BYTES = 256 << 10
    MAX_DATA_BYTES = 64 << 10
    # Bytes on their way to the server, of all streams, above which senders wait.
    MAX_OUTBOX_BYTES = 1 << 20
    # Seconds that a hijack waits for the server to receive others.
    FILES_TIMEOUT = 10.0

    # Allowed flags, least and largest payload, id included, of the server's frames. WebSockets are
    # ASGI's.
    FRAME_RULES = {
      OPEN => [FLAG_BODY_FILE | FLAG_BODY_STREAM, 8, Wire::MAX_PAYLOAD_BYTES],
      INPUT => [Wire::FLAG_END, 4, 4 + Wire::MAX_INPUT_BYTES],
      STREAM_CANCEL => [0, 4, 4],
      WINDOW => [0, 8, 8]
    }.freeze

    module_function

    # STREAM_RESPONSE; `head` is `count` strings as `Wire.join_head` makes them.
    def encode_response(id, flags, count, micros, head, body)
      head_len = head.bytesize
      length = 12 + head_len + body.bytesize
      [STREAM_RESPONSE, flags, count, length, id, micros & 0xffff_ffff, head_len, head, body].pack("CCvVVVVa*a*")
    end

    # DATA of at most `MAX_DATA_BYTES` bytes.
    def encode_data(id, flags, body)
      [DATA, flags, 0, 4 + body.bytesize, id, body].pack("CCvVVa*")
    end

    # RESET with one short line for status page and log.
    def encode_reset(id, flags, reason)
      text = reason[0, Wire::MAX_REASON_BYTES].scrub.encode(Encoding::UTF_8)
      [RESET, flags, 0, 4 + text.bytesize, id, text].pack("CCvVVa*")
    end

    # PULL: the application waits for the next piece of its request's body.
    def encode_pull(id)
      [PULL, 0, 0, 4, id].pack("CCvVV")
    end

    # HIJACK: the application answers by itself, on a socket that was sent before.
    def encode_hijack(id)
      [HIJACK, 0, 0, 4, id].pack("CCvVV")
    end

    # WINDOW: this many more bytes may be sent.
    def encode_window(id, bytes)
      [WINDOW, 0, 0, 8, id, bytes].pack("CCvVVV")
    end
  end

  # Reads the channel socket. Environments are those of a slot.
  class FrameReader < Slot
    # `socket` is non-blocking; each environment begins as a copy of `base`.
    def initialize(socket, base = {})
      super(socket)
      self.base = base
      @pending = String.new
    end

    # All frames that are complete after one receive, as [kind, flags, id, payload]; nil when the
    # server has closed the channel. Waits for bytes.
    def receive
      until (got = read_available)
        return if got.nil?

        @socket.wait_readable
      end
      @pending << got
      take_frames
    rescue SystemCallError, IOError
      nil
    end

    # Environment and body of an OPEN's payload.
    def parse_open(payload)
      env_len = payload.unpack1("V")
      raise Error, "an OPEN frame contradicts itself" if env_len + 4 > payload.bytesize

      strings = payload.byteslice(4, env_len).split("\0", -1)
      [environment(strings), payload.byteslice(4 + env_len, payload.bytesize)]
    end

    private

    # Bytes; false when none are there yet, nil at the end.
    def read_available
      got = @socket.read_nonblock(BUFFER_BYTES, @receive_buffer, exception: false)
      got == :wait_readable ? false : got
    end

    def take_frames
      frames = []
      at = 0
      while @pending.bytesize - at >= 12
        kind, flags, count, length, id = @pending.byteslice(at, 12).unpack("CCvVV")
        check_frame(kind, flags, count, length)
        break if @pending.bytesize - at < 8 + length

        frames << [kind, flags, id, @pending.byteslice(at + 12, length - 4)]
        at += 8 + length
      end
      @pending = at == @pending.bytesize ? String.new : @pending.byteslice(at, @pending.bytesize) if at.positive?
      frames
    end

    def check_frame(kind, flags, count, length)
      allowed, least, largest = Channel::FRAME_RULES[kind]
      return if allowed && (flags & ~allowed).zero? && count.zero? && length.between?(least, largest)

      raise Error, "frame #{kind}, flags #{flags}, count #{count}, #{length} bytes"
    end
  end
end
