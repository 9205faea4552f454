# frozen_string_literal: true

# Plays the server for the tests: starts real worker processes over socket pairs and reads frames. Waiting
# is always a read with a deadline, never a sleep.

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

  # The blocks of a vector file: `key: value` lines, parted by empty lines.
  def blocks(name)
    File.read("#{VECTORS}/#{name}.txt").split("\n\n").filter_map do |part|
      lines = part.lines(chomp: true).reject { |line| line.empty? || line.start_with?("#") }
      lines.to_h { |line| line.split(": ", 2) } unless lines.empty?
    end
  end

  # A REQUEST frame; `environ` changes the defaults. Binary text, as the server encodes it.
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
      Frame.new(kind, flags, count, payload, (@files.shift if kind == Wire::FILE))
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
      length == Wire::TO_THE_END ? frame.file.read : frame.file.read(length)
    end
  end

  # A real worker process that serves `source` as `config.ru`.
  class Worker
    attr_reader :control, :slots, :pid, :dir

    def initialize(source, slots: 1, files: {}, env: {}, command: nil, fds: [])
      @dir = Dir.mktmpdir("penstock-test-")
      { "config.ru" => source, **files }.each { |name, text| File.write("#{@dir}/#{name}", text) }
      pairs = Array.new(slots + 1) { UNIXSocket.pair }
      @control, *@slots = pairs.map { |ours, _| Peer.new(ours) }
      theirs = pairs.map(&:last)
      @log = Tempfile.new("penstock-log")
      numbers = theirs.map { |socket| socket.fileno.to_s }
      options = ["--control-fd", numbers[0], "--slot-fds", numbers.drop(1).join(",")]
      options += ["--dir", @dir, "--entry", "config.ru"]
      passed = (theirs.map(&:fileno) + fds).to_h { |fd| [fd, fd] }
      @pid = spawn(env, *(command || [RbConfig.ruby, "#{ROOT}/worker.rb"]), *options, **passed, err: @log.path)
      theirs.each(&:close)
      hello = @control.frame
      raise hello.inspect unless hello.kind == Wire::HELLO && hello.payload == [Wire::VERSION].pack("V")
    end

    def ready
      frame = @control.frame
      raise frame.payload unless frame.kind == Wire::READY

      @description = JSON.parse(frame.payload)
      self
    end

    attr_reader :description

    def ask(data, slot: 0)
      @slots[slot].send(data)
      @slots[slot].reply
    end

    def log
      File.read(@log.path)
    end

    # The exit status, once the process has ended.
    def wait
      @status ||= Timeout.timeout(DEADLINE) { Process.wait2(@pid)[1] }
    rescue Timeout::Error
      Process.kill("KILL", @pid)
      raise
    end

    def stop
      [@control, *@slots].each { |peer| peer.socket.close unless peer.socket.closed? }
      wait
    ensure
      @log.close!
      FileUtils.remove_entry(@dir)
    end
  end
end
