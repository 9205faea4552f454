# frozen_string_literal: true

# Plays the server for the tests of the reactor: one channel, many streams at once. `read_until`
# sorts frames by stream.

require_relative "harness"

module Harness
  Channel = PenstockWorker::Channel

  # Returns an OPEN of a Rack request.
  def self.open_stream(id, path = "/", body: "", file: false, **environ)
    environ = ENVIRON.merge("PATH_INFO" => path, **environ)
    environ["CONTENT_LENGTH"] = body.bytesize.to_s unless body.empty?
    encoded = (Array.new(9, "") + environ.to_a.flatten).map(&:b).join("\0")
    payload = [id, encoded.bytesize].pack("VV") + encoded + body.b
    Wire.frame(Channel::OPEN, file ? 1 : 0, payload)
  end

  # Returns a minimal OPEN, of which many fit into one read.
  def self.open_small_stream(id, path)
    encoded = ["GET", path, *Array.new(7, "")].join("\0")
    Wire.frame(Channel::OPEN, 0, [id, encoded.bytesize].pack("VV") + encoded)
  end

  # The frames received for one stream.
  class Answer
    attr_reader :strings, :body, :kinds, :reason, :flags

    def initialize
      @body = String.new
      @kinds = []
      @ended_seq = false
    end

    def ended?
      @ended_seq
    end

    def status
      @strings && @strings[0]
    end

    def take(kind, flags, count, payload)
      raise "a frame after the end" if @ended_seq

      @kinds << kind
      @flags = flags
      case kind
      when Channel::STREAM_RESPONSE then take_head(flags, count, payload)
      when Channel::DATA
        @body << payload
        @ended_seq = flags == Wire::FLAG_END
      when Channel::RESET
        @reason = payload
        @ended_seq = true
      when Channel::HIJACK then nil
      else raise "kind #{kind}"
      end
    end

    private

    def take_head(flags, count, payload)
      head_len = payload.unpack("VV")[1]
      @strings = payload.byteslice(8, head_len).split("\0", -1)
      raise @strings.inspect unless @strings.size == count

      @body << payload.byteslice(8 + head_len..)
      @ended_seq = flags == Wire::FLAG_END
    end
  end

  # A real process with a channel that serves `source` as `config.ru`.
  class ReactorWorker < Worker
    attr_reader :channel, :files, :answers

    def initialize(source, stop_timeout: 5, env: {}, files: {})
      ours, theirs = Array.new(2) { Harness.pair }.transpose
      numbers = theirs.map { |socket| socket.fileno.to_s }
      options = ["--reactor", "tasks", "--channel-fd", numbers[0], "--files-fd", numbers[1]]
      options += ["--stop-timeout", stop_timeout.to_s]
      @answers = Hash.new { |hash, id| hash[id] = Answer.new }
      super(source, slots: 0, env: env, files: files, fds: theirs.map(&:fileno), options: options)
      @channel, @files = ours.map { |socket| Peer.new(socket) }
      theirs.each(&:close)
    end

    def open(...)
      Harness.open_stream(...)
    end

    def gone(id)
      Wire.frame(Channel::STREAM_CANCEL, 0, [id].pack("V"))
    end

    def send(*frames)
      @channel.socket.write(*frames)
    end

    # Passes a stream's body file.
    def send_file(id, content)
      Tempfile.create("penstock-body") do |file|
        file.write(content)
        file.flush
        file.rewind
        @files.socket.sendmsg([id].pack("V"), 0, nil, Socket::AncillaryData.unix_rights(file))
      end
    end

    # Reads one frame; returns its stream and kind.
    def read
      kind, flags, count, length = @channel.take(8).unpack("CCvV")
      payload = @channel.take(length)
      id = payload.unpack1("V")
      @answers[id].take(kind, flags, count, payload.byteslice(4..))
      [id, kind]
    end

    def read_until
      read until yield
    end

    # Opens a stream and reads to its end.
    def ask(id, path, **more)
      @answers.delete(id)
      send(open(id, path, **more))
      read_until { @answers[id].ended? }
      @answers[id]
    end

    # Closes the channel and waits for the process.
    def finish
      @channel.socket.close
      wait
    end

    def stop
      [@channel, @files].each { |peer| peer.socket.close unless peer.socket.closed? }
      super
    end
  end

  # The server's side of a worker with a channel, forked from a template.
  class ForkedReactor < Forked
    def initialize(template)
      super(template, slots: 2)
      @kinds = "cf"
    end
  end
end
