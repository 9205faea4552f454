# frozen_string_literal: true

# Frames between the server and this worker: the mirror of `crates/wire`. `rack_app` owns one `Slot`
# per thread and calls `receive`, then exactly one of the ways to answer; `boot` writes control
# frames. `PROTOCOL.md` is the contract, `crates/wire/vectors` its examples.
#
# What must stay true: responses leave in the order of the requests; a whole response leaves with one
# system call; nothing here trusts a length before it has compared it with its bound. Nothing is
# required here: the socket library is loaded by `boot`, after Bundler.
module PenstockWorker
  # Numbers of the protocol, and forms of its frames.
  module Wire
    VERSION = 2
    PAYLOAD_MAX = 64 << 20
    HEAD_MAX = 256 << 10

    REQUEST = 1
    CANCEL = 2
    FD_PLEASE = 16
    HEAD = 17
    BODY = 18
    FILE = 19
    ABORT = 20
    FAILED = 21
    HELLO = 32
    READY = 33
    BOOT_FAILED = 34

    FLAG_END = 1
    FLAG_STREAM = 2
    FLAG_HAS_FD = 2
    FLAG_PROTOCOL = 1

    TO_THE_END = 0xffff_ffff_ffff_ffff
    # A whole body up to this size travels in the head's frame, so that the server knows its length.
    WHOLE_MAX = 32 << 20
    # Up to here copying is cheaper than a second buffer for the kernel to gather.
    JOIN_MAX = 64 << 10
    BODY_FRAME_MAX = 256 << 10
    REASON_MAX = 1000
    # One receive takes a batch of requests; a larger request makes the buffer grow for its time.
    BUFFER_BYTES = 64 << 10

    # The server and this worker do not understand each other: the process must end.
    class Error < StandardError; end

    # The server has closed this slot: the thread must end. No StandardError, so that applications
    # that rescue those do not go on producing.
    class Disconnected < Exception; end # rubocop:disable Lint/InheritException

    CONTROLS = "\x00-\x08\x0a-\x1f\x7f"

    module_function

    def frame(kind, flags, payload)
      [kind, flags, 0, payload.bytesize, payload].pack("CCvVa*")
    end

    # Status, names and values as they travel. Raises ArgumentError when one holds a control
    # character: one of them is the border between strings.
    def join_head(strings)
      head = strings.join("\0")
      head = head.b unless head.ascii_only?
      raise ArgumentError, "a control character" if head.count(CONTROLS) != strings.size - 1
      raise ArgumentError, "more than 256 KiB" if head.bytesize > HEAD_MAX || strings.size > 0xffff

      head
    rescue EncodingError
      join_head(strings.map(&:b))
    end

    def micros
      Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
    end
  end

  # One slot socket: requests in, responses out.
  class Slot
    include Wire

    attr_accessor :seq

    # Each environment begins as a copy of `base`.
    def initialize(socket, base = {})
      @socket = socket
      @base = base
      @socket.sync = true
      @seq = -1
      @buffer = String.new(capacity: BUFFER_BYTES + 1)
      @more = String.new
      @start = @limit = @scanned = 0
    end

    # The next request as [env, body]; body is nil when it is a file to be asked for. Nil when the
    # server has closed the socket.
    def receive
      loop do
        if @limit - @start >= 12
          kind, flags, count, length, first = frame_at(@start)
          stop = @start + 8 + length
          if kind == REQUEST
            check_request(flags, count, length, first)
            return take_request(flags, first, stop) if stop <= @limit
          else
            # A cancellation that is read here is for a response that has ended: those that matter
            # are found by `cancelled?` before the worker comes back here.
            check_cancel(kind, flags, count, length)
            @start = stop
            next
          end
        end
        return unless fill
      end
    end

    # Whether the server has cancelled the request received last; never blocks.
    def cancelled?
      receive_waiting if @limit < BUFFER_BYTES
      at = [@scanned, @start].max
      while @limit - at >= 12
        kind, flags, count, length, first = frame_at(at)
        at += 8 + length
        next unless kind == CANCEL

        check_cancel(kind, flags, count, length)
        @scanned = at
        return true if first == (@seq & 0xffff_ffff)
      end
      false
    end

    # Asks for the body file of the request received last.
    def receive_file
      send_bytes(Wire.frame(FD_PLEASE, 0, ""))
      @socket.recv_io(File, "rb")
    rescue SocketError, SystemCallError, EOFError
      raise Disconnected
    end

    # Sends a response whose body is complete. Packed with its head: raw bytes whatever their encodings.
    def send_whole(count, head, started, body)
      size = body.bytesize
      head_len = head.bytesize
      numbers = [HEAD, FLAG_END, count, 8 + head_len + size, elapsed(started), head_len, head]
      if size <= JOIN_MAX
        send_bytes((numbers << body).pack("CCvVVVa*a*"))
      else
        send_bytes(numbers.pack("CCvVVVa*"), body)
      end
    end

    # Sends a head and the first part of its body, at most `BODY_FRAME_MAX`; more follows.
    def send_head(count, head, started, body)
      send_bytes(stream_head(count, head, started, body.bytesize), body)
    end

    # Sends a piece of a streamed body.
    def send_body(chunk)
      size = chunk.bytesize
      return send_bytes([BODY, 0, 0, size].pack("CCvV"), chunk) if size <= BODY_FRAME_MAX

      (0...size).step(BODY_FRAME_MAX) { |at| send_body(chunk.byteslice(at, BODY_FRAME_MAX)) }
    end

    # Ends a streamed response.
    def send_end
      send_bytes([BODY, FLAG_END, 0, 0].pack("CCvV"))
    end

    # Sends a response whose body is a range of an open file. The descriptor travels with the first
    # byte of this message, which the kernel never merges with an earlier one.
    def send_file(count, head, started, file, offset, length)
      data = stream_head(count, head, started, 0)
      data << [FILE, FLAG_END | FLAG_HAS_FD, 0, 16, offset, length].pack("CCvVQ<Q<")
      sent = @socket.sendmsg(data, 0, nil, Socket::AncillaryData.unix_rights(file))
      send_bytes(data.byteslice(sent..)) if sent < data.bytesize
    rescue SystemCallError, IOError
      raise Disconnected
    end

    # Sends ABORT or FAILED.
    def send_reason(kind, flags, reason)
      send_bytes(Wire.frame(kind, flags, reason[0, REASON_MAX].scrub.encode(Encoding::UTF_8)))
    end

    private

    def elapsed(started)
      (Wire.micros - started) & 0xffff_ffff
    end

    def stream_head(count, head, started, size)
      head_len = head.bytesize
      length = 8 + head_len + size
      [HEAD, FLAG_STREAM, count, length, elapsed(started), head_len, head].pack("CCvVVVa*")
    end

    # `write` gathers several strings in one call and goes on until all is written; for one string
    # `send` is cheaper.
    def send_bytes(prefix, payload = nil)
      if payload.nil? || payload.empty?
        sent = @socket.send(prefix, 0)
        @socket.write(prefix.byteslice(sent..)) if sent < prefix.bytesize
      else
        @socket.write(prefix, payload)
      end
    rescue SystemCallError, IOError
      raise Disconnected
    end

    def frame_at(at)
      at.zero? ? @buffer.unpack("CCvVV") : @buffer.byteslice(at, 12).unpack("CCvVV")
    end

    def take_request(flags, env_len, stop)
      middle = @start + 12 + env_len
      env = environment(@buffer.byteslice(@start + 12, env_len).split("\0", -1))
      body = @buffer.byteslice(middle, stop - middle) if flags.zero?
      @start = stop
      @seq += 1
      [env, body]
    end

    # Names written out: a literal key costs a third of one that was read. The order is the protocol's.
    def environment(strings)
      env = @base.dup
      method, path, uri, name, port, address, remote_port, host, start = strings
      env["REQUEST_METHOD"] = method unless method.empty?
      env["PATH_INFO"] = path unless path.empty?
      env["REQUEST_URI"] = uri unless uri.empty?
      env["SERVER_NAME"] = name unless name.empty?
      env["SERVER_PORT"] = port unless port.empty?
      env["REMOTE_ADDR"] = address unless address.empty?
      env["REMOTE_PORT"] = remote_port unless remote_port.empty?
      env["HTTP_HOST"] = host unless host.empty?
      env["HTTP_X_REQUEST_START"] = start unless start.empty?
      at = 9
      while at < strings.size
        env[strings[at]] = strings[at + 1]
        at += 2
      end
      env
    rescue NoMethodError
      raise Wire::Error, "an environment of #{strings.size} strings"
    end

    # Receives at least one byte more, or all that is missing of a request that has begun.
    def fill
      @scanned = 0
      if @start == @limit
        @start = 0
        @buffer = String.new(capacity: BUFFER_BYTES + 1) if @limit > BUFFER_BYTES
        # Cheaper than readpartial by 3 us: that one asks the kernel whether it may read first.
        @socket.sysread(BUFFER_BYTES, @buffer)
      else
        fill_up
      end
      keep
      true
    rescue IO::WaitReadable
      # Only if somebody has made the shared descriptor non-blocking.
      @socket.wait_readable
      retry
    rescue EOFError, SystemCallError
      false
    end

    def fill_up
      rest = @buffer.byteslice(@start, @limit - @start)
      needed = rest.bytesize < 12 ? 12 : 8 + frame_at(@start)[3]
      @buffer = String.new(capacity: [needed, BUFFER_BYTES].max + 1) << rest
      @start = 0
      while @buffer.bytesize < needed
        @buffer << @socket.readpartial([needed - @buffer.bytesize, BUFFER_BYTES].max, @more)
      end
    end

    def receive_waiting
      got = @socket.recv_nonblock(BUFFER_BYTES - @limit, 0, @more, exception: false)
      return if got == :wait_readable
      raise Disconnected if got.nil? || got.empty?

      @buffer = @buffer.byteslice(0, @limit) << got
      keep
    rescue SystemCallError
      raise Disconnected
    end

    # A slice that reached the end of the buffer would share its memory, and the next receive would
    # have to copy all of it: one byte more than was received keeps slices apart from the end.
    def keep
      @limit = @buffer.bytesize
      @buffer << "\0"
    end

    def check_request(flags, count, length, first)
      return if length <= PAYLOAD_MAX && first + 4 <= length && flags <= 1 && count.zero?

      raise Error, "a request frame contradicts itself"
    end

    def check_cancel(kind, flags, count, length)
      return if kind == CANCEL && flags.zero? && count.zero? && length == 4

      raise Error, "unknown frame"
    end
  end
end
