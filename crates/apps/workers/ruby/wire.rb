# frozen_string_literal: true

# Frames between the server and this worker: the mirror of `crates/wire`. `rack_app` owns one `Slot`
# per thread and calls `receive`, then exactly one of the methods that answer; `boot` writes control
# frames. `PROTOCOL.md` is the contract, `crates/wire/vectors` its examples.
#
# # Invariants
# - Responses leave in the order of the requests.
# - A complete response leaves with one system call.
# - A frame that was begun is finished. Where it cannot be, nothing follows it.
# - A length is compared with its bound before it is used.
# - Nothing is required here: `boot` loads the socket library, after Bundler.
module PenstockWorker
  # Numbers of the protocol, and its frames.
  module Wire
    PROTOCOL_VERSION = 2
    MAX_PAYLOAD_BYTES = 64 << 20
    MAX_HEAD_BYTES = 256 << 10

    REQUEST = 1
    CANCEL = 2
    COLLECT_GARBAGE = 3
    INPUT = 4
    FD_REQUEST = 16
    HEAD = 17
    BODY = 18
    FILE = 19
    ABORT = 20
    FAILED = 21
    IO_BOUND = 22
    EXTEND_DEADLINE = 23
    GARBAGE_COLLECTED = 24
    PULL = 25
    HIJACK = 26
    HELLO = 32
    READY = 33
    BOOT_FAILED = 34
    FORK_FAILED = 35
    FORK = 48
    SLOTS = 49
    PROMOTE = 50
    DISMISS = 51

    FLAG_BODY_FILE = 1
    FLAG_BODY_STREAM = 2
    FLAG_END = 1
    FLAG_STREAM = 2
    FLAG_HAS_FD = 2
    FLAG_PROTOCOL_ERROR = 1
    FLAG_INPUT_ABORTED = 2

    UNTIL_END = 0xffff_ffff_ffff_ffff
    # A whole body up to this size travels in the head's frame, so that the server knows its length.
    MAX_WHOLE_BODY_BYTES = 32 << 20
    # Up to here copying is cheaper than a second buffer for the kernel to gather.
    MAX_JOIN_BYTES = 64 << 10
    MAX_BODY_FRAME_BYTES = 256 << 10
    MAX_REASON_BYTES = 1000
    # Bytes of a request's body in one INPUT.
    MAX_INPUT_BYTES = 60 << 10
    # One receive takes a batch of requests; a larger request makes the buffer grow for its time.
    BUFFER_BYTES = 64 << 10
    # Longest extension of a request's time, in seconds.
    MAX_EXTEND_SECONDS = 86_400
    # Descriptors that travel with one frame.
    MAX_FDS = 64
    # Room for them. Without this number `recvmsg` retries until it has as many as were sent, which
    # is never in a process that may open no more.
    CONTROL_BYTES = 512
    # The worker's descriptors begin here, out of the reach of code that closes "all" small numbers.
    MIN_FD = 100
    F_DUPFD_CLOEXEC = 1030
    UNINTERRUPTED = { Object => :never }.freeze
    private_constant :F_DUPFD_CLOEXEC, :UNINTERRUPTED

    # The server and this worker do not understand each other: the process must end.
    class Error < StandardError; end

    # The server has closed this slot: the thread must end. No StandardError, so that applications
    # that rescue those do not continue to produce.
    class Disconnected < Exception; end # rubocop:disable Lint/InheritException

    # The beginning of a request's body, whose rest is to be pulled.
    class PartialBody < String; end

    # Variables that nearly every request has: their values come first, in this order.
    COMMON_NAMES = %w[
      REQUEST_METHOD PATH_INFO REQUEST_URI SERVER_NAME SERVER_PORT REMOTE_ADDR REMOTE_PORT HTTP_HOST
      HTTP_X_REQUEST_START
    ].map(&:-@).freeze

    CONTROL_CHARS = "\x00-\x08\x0a-\x1f\x7f"

    module_function

    def frame(kind, flags, payload)
      [kind, flags, 0, payload.bytesize, payload].pack("CCvVa*")
    end

    # Status, names and values, joined. Raises ArgumentError when one holds a control character: NUL
    # is the border between strings.
    def join_head(strings)
      head = strings.join("\0")
      head = head.b unless head.ascii_only?
      raise ArgumentError, "a control character" if head.count(CONTROL_CHARS) != strings.size - 1
      raise ArgumentError, "more than 256 KiB" if head.bytesize > MAX_HEAD_BYTES || strings.size > 0xffff

      head
    rescue EncodingError
      join_head(strings.map(&:b))
    end

    # The same file at a number of `MIN_FD` or more; no program inherits it. Its owner is the IO
    # that is returned, even if others use the number.
    def adopt_fd(io)
      io = IO.for_fd(io) if io.is_a?(Integer)
      moved = IO.for_fd(duplicate_fd(io))
      io.close
      moved
    rescue Errno::EINVAL, Errno::EMFILE
      # The limit on open files is that low.
      io.close_on_exec = true
      io
    end

    # The number of a second descriptor of the same file, as in `adopt_fd`.
    def duplicate_fd(io)
      io.fcntl(F_DUPFD_CLOEXEC, MIN_FD)
    end

    # The file that comes with the next byte, or with these bytes and no others. Not by `recv_io`:
    # it drops a message whose descriptor this process has no room for, and waits for another.
    def receive_file(socket, bytes = nil)
      # By index, here and elsewhere: with `GC.auto_compact`, Ruby 3.1 loses objects in an assignment
      # with a splat (ruby/ruby#9081).
      message = socket.recvmsg(bytes&.bytesize || 1, 0, CONTROL_BYTES, scm_rights: true)
      got_bytes = message[0]
      raise Disconnected if got_bytes.nil? || got_bytes.empty?

      got = files_of(message)[0]
      raise Error, "the file of a request's body did not arrive: too many open files?" unless got

      raise Error, "a file came that is another request's body" if bytes && got_bytes != bytes

      got.autoclose = false
      File.for_fd(got.fileno, "rb")
    rescue SystemCallError, IOError
      raise Disconnected
    end

    # The next frame on a control socket as [kind, flags, payload, files]; nil when the server has
    # closed it or has ended.
    def receive_control(socket)
      message = socket.recvmsg(8, 0, CONTROL_BYTES, scm_rights: true)
      files = files_of(message)
      head = fill_control(socket, message[0], 8) or return
      kind, flags, count, length = head.unpack("CCvV")
      unless [FORK, SLOTS, PROMOTE, DISMISS].include?(kind) && count.zero? && length <= MAX_FDS && files.size <= MAX_FDS
        raise Error, "an unknown control frame of kind #{kind}"
      end

      payload = length.zero? ? "" : fill_control(socket, socket.recv(length), length)
      payload && [kind, flags, payload, files]
    rescue SystemCallError, IOError
      nil
    end

    # The files that came with a message, an Array as of `recvmsg`.
    def files_of(message)
      message.drop(3).flat_map { |control| control.unix_rights || [] }
    end

    def fill_control(socket, data, size)
      until data.nil? || data.empty? || data.bytesize == size
        more = socket.recv(size - data.bytesize)
        return if more.nil? || more.empty?

        data += more
      end
      data unless data.nil? || data.empty?
    end

    def micros
      Process.clock_gettime(Process::CLOCK_MONOTONIC, :microsecond)
    end
  end

  # `rack.hijack` of one request.
  class Hijacker
    def initialize(slot, request)
      @slot = slot
      @request = request
    end

    def call
      @slot.hijack(@request)
    end

    def to_proc
      method(:call).to_proc
    end

    # Without the requests that the slot holds: environments are printed.
    def inspect
      "#<#{self.class}>"
    end
  end

  # One slot socket: requests in, responses out. One thread receives and answers; only
  # `mark_as_io_bound`, `extend_timeout` and `pull` may be called from others as well, as long as
  # the response has not ended.
  class Slot
    include Wire

    attr_accessor :seq
    # Whether the application answers the current request by itself.
    attr_reader :hijacked
    # Each environment begins as a copy of `base`. `before_io_bound` is called before the server
    # hears of an I/O-bound request (false prevents that), `collect` when it asks for a garbage
    # collection.
    attr_writer :base, :before_io_bound, :collect

    def initialize(socket)
      @socket = socket
      @base = {}
      @before_io_bound = -> { true }
      @collect = -> {}
      @lock = Mutex.new
      @has_other_sender = false
      # The thread that reads the socket for a body that still arrives has it.
      @input_lock = Mutex.new
      # The body of the current request still arrives; a PULL is not answered; CANCEL came
      # meanwhile.
      @has_streamed_body = @is_pull_pending = @was_cancelled = false
      @socket.sync = true
      @seq = @ended_seq = @io_bound_seq = @streaming_seq = -1
      @hijacked = false
      @plain = nil
      @buffer = String.new(capacity: BUFFER_BYTES + 1)
      @receive_buffer = String.new
      @start = @limit = @scanned_to = 0
    end

    # The next request as [env, body]; body is nil when it is a file to be asked for, a
    # `PartialBody` when the rest is to be pulled. Nil when the server has closed the socket.
    def receive
      # A thread of the application may still wait for a piece. It gets none.
      @input_lock.synchronize { nil } if @is_pull_pending
      loop do
        if @limit - @start >= 12
          kind, flags, count, length, first = frame_at(@start)
          stop = @start + 8 + length
          if kind == REQUEST
            check_request(flags, count, length, first)
            return take_request(flags, first, stop) if stop <= @limit
          elsif kind == INPUT
            next if skip_input(stop)
          else
            # A CANCEL that is read here is for an ended response: `cancelled?` finds the others
            # before the worker comes back here.
            kind == COLLECT_GARBAGE ? answer_gc(flags, count, length) : check_cancel(kind, flags, count, length)
            @start = stop
            next
          end
        elsif @limit - @start >= 8 && @buffer.getbyte(@start) == COLLECT_GARBAGE
          _, flags, count, length = @buffer.byteslice(@start, 8).unpack("CCvV")
          answer_gc(flags, count, length)
          @start += 8
          next
        elsif @limit - @start >= 8 && @buffer.getbyte(@start) == INPUT
          next if skip_input(@start + 8 + @buffer.byteslice(@start, 8).unpack("CCvV")[3])
        elsif @limit - @start >= 8 && @buffer.byteslice(@start + 4, 4).unpack1("V") < 4
          # Nothing more of it comes.
          raise Error, "unknown frame"
        end
        return unless fill_buffer
      end
    end

    # Whether the server has cancelled the request received last; never blocks.
    def cancelled?
      return cancelled_beside_body? if @has_streamed_body

      return false if @plain && !@plain.hand_over

      receive_waiting if @limit < BUFFER_BYTES
      at = [@scanned_to, @start].max
      while @limit - at >= 12
        kind, flags, count, length, first = frame_at(at)
        at += 8 + length
        next unless kind == CANCEL

        check_cancel(kind, flags, count, length)
        @scanned_to = at
        return true if first == (@seq & 0xffff_ffff)
      end
      false
    end

    # Asks for the body file of the request received last.
    def receive_file
      send_more(Wire.frame(FD_REQUEST, 0, ""))
      Wire.receive_file(@socket)
    end

    # A lambda that pulls the body of the request received last, piece by piece.
    def body_puller
      seq = @seq
      -> { pull(seq) }
    end

    # Waits for the next piece of the body of this request: its bytes, and whether it is the last.
    # Nil when the rest never comes, or the response has ended.
    def pull(seq)
      @input_lock.synchronize do
        return if @is_pull_pending ? @seq != seq : !ask_for_input(seq)

        until (piece = next_input)
          raise Disconnected unless fill_buffer
        end
        piece if piece[0]
      end
    end

    # `penstock.mark_as_io_bound`: the current request waits for something else than the processor.
    # True when the server was told, false when it knew or the response has ended.
    def mark_as_io_bound
      return false if @io_bound_seq == @seq || !@before_io_bound.call

      send_notice([IO_BOUND, 0, 0, 0].pack("CCvV")) { @io_bound_seq != @seq && (@io_bound_seq = @seq) }
    end

    # `penstock.extend_timeout`: the current request may take so many seconds from now on (1 to
    # 86,400). True when the server was told, false when the response has ended.
    def extend_timeout(seconds)
      unless seconds.between?(1, MAX_EXTEND_SECONDS)
        raise ArgumentError, "extend_timeout takes 1 to #{MAX_EXTEND_SECONDS} seconds, not #{seconds}"
      end

      send_notice([EXTEND_DEADLINE, 0, 0, 4, seconds.ceil].pack("CCvVV"))
    end

    # Runs a block that notes what it sends: no exception from elsewhere (`Thread#raise`, `kill`,
    # Timeout) comes between the note and the last byte. It is raised behind the block.
    def uninterrupted(&block)
      Thread.handle_interrupt(UNINTERRUPTED, &block)
    end

    # Sends a response whose body is complete. Packed with its head: raw bytes whatever their
    # encodings. As all that ends a response, to be called in `uninterrupted`.
    def send_whole(count, head, started, body)
      size = body.bytesize
      head_len = head.bytesize
      numbers = [HEAD, FLAG_END, count, 8 + head_len + size, elapsed(started), head_len, head]
      if size <= MAX_JOIN_BYTES
        send_final((numbers << body).pack("CCvVVVa*a*"))
      else
        send_final(numbers.pack("CCvVVVa*"), body)
      end
    end

    # Sends a head and the first part of its body, at most `MAX_BODY_FRAME_BYTES`; more follows.
    def send_head(count, head, started, body)
      @streaming_seq = @seq
      send_more(stream_head(count, head, started, body.bytesize), body)
    end

    # Sends a piece of a streamed body.
    def send_body(chunk)
      size = chunk.bytesize
      return send_more([BODY, 0, 0, size].pack("CCvV"), chunk) if size <= MAX_BODY_FRAME_BYTES

      (0...size).step(MAX_BODY_FRAME_BYTES) { |at| send_body(chunk.byteslice(at, MAX_BODY_FRAME_BYTES)) }
    end

    # Ends a streamed response.
    def send_end
      send_final([BODY, FLAG_END, 0, 0].pack("CCvV"))
    end

    # Sends a response whose body is a range of an open file. The descriptor travels with the first
    # byte of this message, which the kernel never merges with an earlier one.
    def send_file(count, head, started, file, offset, length)
      data = stream_head(count, head, started, 0)
      @ended_seq = @seq
      wait_for_other_sender
      data << [FILE, FLAG_END | FLAG_HAS_FD, 0, 16, offset, length].pack("CCvVQ<Q<")
      finish_or_close do
        sent = @socket.sendmsg(data, 0, nil, Socket::AncillaryData.unix_rights(file))
        @socket.write(data.byteslice(sent..)) if sent < data.bytesize
      end
    end

    # Notes that the calling thread calls the application, for each request.
    def bind_thread
      @app_thread = Thread.current
    end

    # `rack.hijack`: the application answers by itself, on the returned socket. Only the end is left
    # to send. Only for the thread that calls the application: one that an earlier request has left
    # would get the connection of another. Raises IOError there, and when the response has begun.
    # `request` is the number of the request that it belongs to: an environment left from an earlier
    # one would get the connection of another, too.
    def hijack(request = @seq)
      @lock.synchronize do
        unless request == @seq && @app_thread.equal?(Thread.current)
          raise IOError, "the connection cannot be hijacked: the call is over"
        end
        return @env["rack.hijack_io"] if @hijacked

        raise IOError, "the connection cannot be hijacked: its response has begun" if [@streaming_seq, @ended_seq].include?(@seq)

        ours, theirs = UNIXSocket.pair
        uninterrupted do
          @streaming_seq = @seq
          @hijacked = true
          @env["rack.hijack_io"] = ours
          frame = [HIJACK, FLAG_HAS_FD, 0, 0].pack("CCvV")
          finish_or_close { @socket.sendmsg(frame, 0, nil, Socket::AncillaryData.unix_rights(theirs)) }
        ensure
          theirs.close
        end
        ours
      end
    end

    # `rack.hijack` of the request received last.
    def hijacker
      Hijacker.new(self, @seq)
    end

    # The native part's side of this slot. It has the bytes that have come, and hands them over.
    def plain_slot(rack_major)
      @plain ||= Native::PlainSlot.new(self, @socket.fileno, @base, StringIO, Hijacker, rack_major)
    end

    # Whether the response to the request received last has ended.
    def ended?
      @ended_seq == @seq
    end

    # Called for each request that the native part has received.
    def count_request; end

    # The call of a hijacked request is over.
    def end_hijacked_call
      @hijacked = false
      @env = nil
    end

    # Sends ABORT or FAILED.
    def send_failure(kind, flags, reason)
      send_final(Wire.frame(kind, flags, reason[0, MAX_REASON_BYTES].scrub.encode(Encoding::UTF_8)))
    end

    private

    def ask_for_input(seq)
      @is_pull_pending = true
      @is_pull_pending = send_notice([PULL, 0, 0, 0].pack("CCvV")) { @seq == seq }
    end

    # A piece that has come completely: its bytes, nil if the body was cut, and whether it is the
    # last.
    def next_input
      while @limit - @start >= 8
        kind, flags, count, length = @buffer.byteslice(@start, 8).unpack("CCvV")
        stop = @start + 8 + length
        return take_input(flags, count, length, stop) if kind == INPUT

        check_cancel(kind, flags, count, length)
        return if stop > @limit

        record_cancel(@start)
        @start = stop
      end
    end

    def take_input(flags, count, length, stop)
      unless flags <= 2 && count.zero? && length <= MAX_INPUT_BYTES
        raise Error, "an input frame contradicts itself"
      end
      return if stop > @limit

      piece = [flags == FLAG_INPUT_ABORTED ? nil : @buffer.byteslice(@start + 8, length), flags == FLAG_END]
      @start = stop
      @is_pull_pending = false
      piece
    end

    # Skips a piece that came too late for its request; false while it is incomplete.
    def skip_input(stop)
      raise Error, "unknown frame" if !@is_pull_pending || stop - @start > 8 + MAX_INPUT_BYTES
      return false if stop > @limit

      @start = stop
      @is_pull_pending = false
      true
    end

    # As `cancelled?`, while a thread of the application's may read the body.
    def cancelled_beside_body?
      return @was_cancelled unless @input_lock.try_lock

      begin
        receive_waiting if @limit < BUFFER_BYTES
        at = @start
        while @limit - at >= 8
          kind, _, _, length = @buffer.byteslice(at, 8).unpack("CCvV")
          record_cancel(at) if kind == CANCEL && @limit - at >= 12
          at += 8 + length
        end
        @was_cancelled
      ensure
        @input_lock.unlock
      end
    end

    def record_cancel(at)
      @was_cancelled = true if frame_at(at)[4] == (@seq & 0xffff_ffff)
    end

    def elapsed(started)
      (Wire.micros - started) & 0xffff_ffff
    end

    def stream_head(count, head, started, size)
      head_len = head.bytesize
      length = 8 + head_len + size
      [HEAD, FLAG_STREAM, count, length, elapsed(started), head_len, head].pack("CCvVVVa*")
    end

    # Sends a frame about the current request, from any thread, unless its response has ended or the
    # block returns false. `@has_other_sender` is set before `@ended_seq` is read, and a response
    # sets `@ended_seq` before it reads `@has_other_sender`: one of the two sees the other, and the
    # usual response takes no lock.
    def send_notice(frame)
      @lock.synchronize do
        @has_other_sender = true
        return false if @ended_seq == @seq || (block_given? && !yield)

        uninterrupted { send_bytes(frame) }
        true
      rescue Disconnected
        false
      ensure
        @has_other_sender = false
      end
    end

    def send_final(prefix, payload = nil)
      @ended_seq = @seq
      wait_for_other_sender if @has_other_sender
      send_bytes(prefix, payload)
    end

    def wait_for_other_sender
      @lock.synchronize { nil }
    end

    def send_more(prefix, payload = nil)
      @lock.synchronize { uninterrupted { send_bytes(prefix, payload) } }
    end

    # `write` gathers several strings in one call and continues until all is written; for one string
    # `send` is cheaper.
    def send_bytes(prefix, payload = nil)
      finish_or_close do
        if payload.nil? || payload.empty?
          sent = @socket.send(prefix, 0)
          @socket.write(prefix.byteslice(sent..)) if sent < prefix.bytesize
        else
          @socket.write(prefix, payload)
        end
      end
    end

    # Runs a block that sends a frame, within `uninterrupted`. A handler of a signal may still raise.
    # How much was sent is not known then: the socket is closed, so that nothing follows, and the
    # process ends.
    def finish_or_close
      is_over = false
      yield
      is_over = true
    rescue SystemCallError, IOError
      is_over = true
      raise Disconnected
    ensure
      break_off unless is_over
    end

    def break_off
      @socket.shutdown
      raise Error, "a handler of a signal raised while a frame was sent, so that this process must end"
    end

    def frame_at(at)
      at.zero? ? @buffer.unpack("CCvVV") : @buffer.byteslice(at, 12).unpack("CCvVV")
    end

    def take_request(flags, env_len, stop)
      middle = @start + 12 + env_len
      @env = env = environment(@buffer.byteslice(@start + 12, env_len).split("\0", -1))
      body = @buffer.byteslice(middle, stop - middle) if flags != FLAG_BODY_FILE
      @has_streamed_body = flags == FLAG_BODY_STREAM
      if @has_streamed_body
        @was_cancelled = false
        body = PartialBody.new(body)
      end
      @start = stop
      @seq += 1
      [env, body]
    end

    # Names written out: a literal key costs a third of one that was read. The order is the
    # protocol's.
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

    # Receives at least one byte more, or all that is missing of a begun request.
    def fill_buffer
      @scanned_to = 0
      @start == @limit ? fill_empty : fill_up
      pad_buffer
      true
    rescue EOFError, SystemCallError
      false
    end

    def fill_empty
      @buffer = String.new(capacity: BUFFER_BYTES + 1) if @limit > BUFFER_BYTES
      # The rest of the buffer was answered: it must not be read again, whatever happens below.
      @start = @limit = 0
      # Cheaper than readpartial by 3 us: that one asks the kernel whether it may read first.
      @socket.sysread(BUFFER_BYTES, @buffer)
    rescue Errno::EINTR, Errno::EAGAIN
      # A signal, perhaps the end of a child of the application; or a descriptor that was made
      # non-blocking.
      @socket.wait_readable
      retry
    end

    def fill_up
      rest = @buffer.byteslice(@start, @limit - @start)
      # A frame that is no request may end after eight bytes.
      needed = 8
      if rest.bytesize >= 8
        needed += rest.unpack("CCvV")[3]
        # An unknown frame is neither waited for nor given room.
        needed = 12 if needed > 12 && rest.bytesize < 12
      end
      @buffer = String.new(capacity: [needed, BUFFER_BYTES].max + 1) << rest
      @start = 0
      while @buffer.bytesize < needed
        @buffer << @socket.readpartial([needed - @buffer.bytesize, BUFFER_BYTES].max, @receive_buffer)
      end
    end

    def receive_waiting
      got = @socket.recv_nonblock(BUFFER_BYTES - @limit, 0, @receive_buffer, exception: false)
      return if got == :wait_readable
      raise Disconnected if got.nil? || got.empty?

      @buffer = @buffer.byteslice(0, @limit) << got
      pad_buffer
    rescue SystemCallError
      raise Disconnected
    end

    # A slice that reached the end of the buffer would share its memory, and the next receive would
    # have to copy all of it: one more byte than was received keeps slices apart from the end.
    def pad_buffer
      @limit = @buffer.bytesize
      @buffer << "\0"
    end

    def check_request(flags, count, length, first)
      return if length <= MAX_PAYLOAD_BYTES && first + 4 <= length && flags <= 2 && count.zero?

      raise Error, "a request frame contradicts itself"
    end

    def answer_gc(flags, count, length)
      raise Error, "unknown frame" unless flags.zero? && count.zero? && length.zero?

      @collect.call
      send_more(Wire.frame(GARBAGE_COLLECTED, 0, ""))
    end

    def check_cancel(kind, flags, count, length)
      return if kind == CANCEL && flags.zero? && count.zero? && length == 4

      raise Error, "unknown frame"
    end
  end
end
