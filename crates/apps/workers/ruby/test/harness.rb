# frozen_string_literal: true

# Plays the server for the tests: starts real worker processes over socket pairs and reads frames.
# Waiting is always a read with a deadline, never a sleep.

require "fiddle"
require "io/nonblock"
require "json"
require "rbconfig"
require "socket"
require "stringio"
require "tempfile"
require "timeout"
require "tmpdir"
require_relative "../worker"

module Harness
  Wire = PenstockWorker::Wire
  VECTORS = File.expand_path("../../../../wire/vectors", __dir__)
  ROOT = File.expand_path("..", __dir__)
  DEADLINE = 20

  ENVIRON = {
    "REQUEST_METHOD" => "GET",
    "SCRIPT_NAME" => "",
    "PATH_INFO" => "/",
    "QUERY_STRING" => "",
    "SERVER_NAME" => "example.com",
    "SERVER_PORT" => "80",
    "SERVER_PROTOCOL" => "HTTP/1.1",
    "REMOTE_ADDR" => "127.0.0.1",
    "REMOTE_PORT" => "40000",
    "HTTP_HOST" => "example.com",
    "HTTP_USER_AGENT" => "test/1.0",
    "HTTP_ACCEPT" => "*/*",
    "rack.url_scheme" => "http"
  }.freeze

  Frame = Struct.new(:kind, :flags, :count, :payload, :file)
  Reply = Struct.new(:status, :headers, :body, :frames, :reason, :flags)

  module_function

  # Returns the blocks of a vector file: `key: value` lines, separated by empty lines.
  def blocks(name)
    File.read("#{VECTORS}/#{name}.txt").split("\n\n").filter_map do |part|
      lines = part.lines(chomp: true).reject { |line| line.empty? || line.start_with?("#") }
      lines.to_h { |line| line.split(": ", 2) } unless lines.empty?
    end
  end

  # Returns a REQUEST frame; `environ` changes the defaults. Binary text, as the server encodes it.
  def request(environ = {}, body: "", file: false)
    environ = ENVIRON.merge(environ)
    environ["CONTENT_LENGTH"] ||= body.bytesize.to_s unless body.empty?
    encoded = (Array.new(9, "") + environ.to_a.flatten).map(&:b).join("\0")
    payload = [encoded.bytesize].pack("V") + encoded + body.b
    Wire.frame(Wire::REQUEST, file ? 1 : 0, payload)
  end

  def cancel(seq)
    Wire.frame(Wire::CANCEL, 0, [seq].pack("V"))
  end

  # Returns the test's end and the worker's end, which blocks like the server's sockets.
  def pair
    UNIXSocket.pair.each { |socket| socket.nonblock = false }
  end

  def send_with_files(peer, data, files)
    sent = peer.socket.sendmsg(data, 0, nil, Socket::AncillaryData.unix_rights(*files.map(&:to_io)))
    raise "#{sent} of #{data.bytesize} bytes" unless sent == data.bytesize
  end

  # The server's end of one socket.
  class Peer
    attr_reader :socket, :requests

    def initialize(socket)
      @socket = socket
      @data = String.new
      @files = []
      @requests = 0
    end

    # Sends whole frames and counts the requests among them.
    def send(data)
      at = 0
      while at + 8 <= data.bytesize
        @requests += 1 if data.getbyte(at) == Wire::REQUEST
        at += 8 + data.byteslice(at + 4, 4).unpack1("V")
      end
      @socket.write(data)
    end

    def take(size)
      while @data.bytesize < size
        data, _, _, *controls = Timeout.timeout(DEADLINE) { @socket.recvmsg(1 << 16, scm_rights: true) }
        raise EOFError, "#{@data.inspect} left over" if data.nil? || data.empty?

        @data << data
        controls.each { |control| @files.concat(control.unix_rights) }
      end
      @data.slice!(0, size)
    end

    def frame
      kind, flags, count, length = take(8).unpack("CCvV")
      payload = take(length)
      file = @files.shift if [Wire::FILE, Wire::HIJACK].include?(kind)
      Frame.new(kind, flags, count, payload, file)
    end

    def reply
      frame = self.frame
      return Reply.new(nil, [], "", [frame.kind], frame.payload, frame.flags) if frame.kind == Wire::FAILED
      raise frame.inspect unless frame.kind == Wire::HEAD

      head_len = frame.payload.unpack("VV")[1]
      strings = frame.payload.byteslice(8, head_len).split("\0", -1)
      raise strings.inspect unless strings.size == frame.count

      body = frame.payload.byteslice(8 + head_len..)
      reply = Reply.new(strings[0], strings.drop(1).each_slice(2).to_a, body, [frame.kind])
      read_rest(reply) unless frame.flags == Wire::FLAG_END
      reply
    end

    private

    def read_rest(reply)
      loop do
        frame = self.frame
        reply.frames << frame.kind
        return reply.reason = frame.payload if frame.kind == Wire::ABORT

        reply.body << (frame.file ? file_part(frame) : frame.payload)
        return if frame.flags & Wire::FLAG_END != 0
      end
    end

    def file_part(frame)
      offset, length = frame.payload.unpack("Q<Q<")
      frame.file.seek(offset)
      length == Wire::UNTIL_END ? frame.file.read : frame.file.read(length)
    end
  end

  # The server's side of a process with slots, however it was started.
  module Running
    def ask(data, slot: 0)
      @slots[slot].send(data)
      @slots[slot].reply
    end

    # Waits for the end of the process and returns its exit status.
    def wait
      @status ||= Timeout.timeout(DEADLINE) { Process.wait2(@pid)[1] }
    rescue Timeout::Error
      Process.kill("KILL", @pid)
      raise
    end
  end

  # A real worker process that serves `source` as `config.ru`.
  class Worker
    include Running

    attr_reader :control, :slots, :spares, :pid, :dir

    def initialize(source, slots: 1, spares: 0, files: {}, env: {}, command: nil, fds: [], options: [],
                   entry: "config.ru")
      @dir = Dir.mktmpdir("penstock-test-")
      { entry[/\A[^:]+/] => source, **files }.each do |name, text|
        FileUtils.mkdir_p(File.dirname("#{@dir}/#{name}"))
        File.write("#{@dir}/#{name}", text)
      end
      pairs = Array.new(slots + spares + 1) { Harness.pair }
      @control, *@slots = pairs.map { |ours, _| Peer.new(ours) }
      @spares = @slots.slice!(slots, spares)
      theirs = pairs.map(&:last)
      @log = Tempfile.new("penstock-log")
      numbers = theirs.map { |socket| socket.fileno.to_s }
      options += ["--control-fd", numbers[0], "--slot-fds", numbers[1, slots].join(",")]
      options += ["--spare-slot-fds", numbers.drop(slots + 1).join(","), "--dir", @dir, "--entry", entry]
      passed = (theirs.map(&:fileno) + fds).to_h { |fd| [fd, fd] }
      command ||= [RbConfig.ruby, "#{ROOT}/worker.rb"]
      @pid = spawn(env, *command, *options, **passed, out: File::NULL, err: @log.path)
      theirs.each(&:close)
      hello = @control.frame
      raise hello.inspect unless hello.kind == Wire::HELLO && hello.payload == [Wire::PROTOCOL_VERSION].pack("V")
    end

    def ready
      frame = @control.frame
      raise frame.payload unless frame.kind == Wire::READY

      @description = JSON.parse(frame.payload)
      self
    end

    attr_reader :description

    def log
      File.read(@log.path)
    end

    def stop
      [@control, *@slots, *@spares].each { |peer| peer.socket.close unless peer.socket.closed? }
      wait
    ensure
      @log.close!
      FileUtils.remove_entry(@dir)
    end
  end

  # A real template process; `fork` makes workers from it.
  class Template < Worker
    PR_SET_CHILD_SUBREAPER = 36

    def initialize(source, options: [], **rest)
      types = [Fiddle::TYPE_INT, *[Fiddle::TYPE_LONG] * 4]
      prctl = Fiddle::Function.new(Fiddle.dlopen(nil)["prctl"], types, Fiddle::TYPE_INT)
      # Its workers become children of this process, as they become the server's.
      raise "no subreaper" unless prctl.call(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0).zero?

      super(source, slots: 0, options: ["--template", "--server-pid", Process.pid.to_s, *options], **rest)
    end

    def fork(**sockets)
      Forked.new(@control, **sockets)
    end
  end

  # The server's side of a worker forked from a template.
  class Forked
    include Running

    attr_reader :control, :slots, :spares, :stdout
    attr_accessor :pid

    def initialize(template, slots: 1, spares: 0)
      pairs = Array.new(slots + spares + 1) { Harness.pair }
      @control, *@slots = pairs.map { |ours, _| Peer.new(ours) }
      @spares = @slots.slice!(slots, spares)
      theirs, *@theirs = pairs.map(&:last)
      @kinds = "s" * slots + "i" * spares
      @stdout = Tempfile.new("penstock-out")
      @stderr = Tempfile.new("penstock-err")
      frame = Wire.frame(Wire::FORK, 0, [7].pack("Q<"))
      Harness.send_with_files(template, frame, [theirs, @stdout, @stderr])
      theirs.close
    end

    # Sends its sockets, `at_once` with a frame, and waits for its READY.
    def ready(at_once: 64)
      frame = boot(at_once: at_once)
      raise frame.payload unless frame.kind == Wire::READY

      @pid = JSON.parse(frame.payload)["pid"]
      self
    end

    # Has it end: no request will come, and it will not become a template.
    def dismiss
      @slots.each { |peer| peer.socket.close }
      @control.socket.write(Wire.frame(Wire::DISMISS, 0, ""))
      self
    end

    # Sends its sockets, `at_once` with a frame; returns what it answers: READY, or why not.
    def boot(at_once: 64)
      hello = @control.frame
      raise hello.inspect unless hello.kind == Wire::HELLO && hello.payload == [Wire::PROTOCOL_VERSION].pack("V")

      batches = @theirs.each_slice(at_once).to_a
      batches.each_with_index do |files, at|
        flags = at == batches.size - 1 ? Wire::FLAG_END : 0
        Harness.send_with_files(@control, Wire.frame(Wire::SLOTS, flags, @kinds[at * at_once, files.size]), files)
      end
      @theirs.each(&:close)
      @control.frame
    end

    def log
      File.read(@stderr.path)
    end

    def stop
      sockets = @theirs + [@control, *@slots, *@spares].map(&:socket)
      sockets.each { |socket| socket.close unless socket.closed? }
      wait if @pid
    ensure
      @stdout.close!
      @stderr.close!
    end
  end
end
