# frozen_string_literal: true

# The reactor: real worker processes; the test plays the server. Without the gem async, which an
# application brings itself, only its absence is tested.

require "minitest/autorun"
require_relative "channel_harness"

module PenstockWorker
  # Tests that need the gem.
  module NeedsAsync
    def self.check(test)
      installed = Fiber.respond_to?(:set_scheduler) && Gem::Specification.find_all_by_name("async").any?
      test.skip "async is not installed" unless installed
    end
  end

  # The channel's vectors in `crates/wire/vectors`, and the rules of `FrameReader`.
  class ChannelVectorsTest < Minitest::Test
    def pair
      ours, theirs = UNIXSocket.pair
      (@sockets ||= []).push(ours, theirs)
      [ours, theirs]
    end

    def teardown
      @sockets&.each { |socket| socket.close unless socket.closed? }
    end

    def kinds
      { "open" => Channel::OPEN, "gone" => Channel::STREAM_CANCEL, "window" => Channel::WINDOW,
        "input" => Channel::INPUT }
    end

    def seen(inbox, frames)
      frames.map do |kind, flags, id, payload|
        [kind, flags, id, kind == Channel::OPEN ? inbox.parse_open(payload) : payload]
      end
    end

    def expected(block)
      kind = kinds[block["kind"]]
      return [kind, 0, block["id"].to_i, [block["bytes"].to_i].pack("V")] if kind == Channel::WINDOW
      return [kind, 0, block["id"].to_i, ""] if kind == Channel::STREAM_CANCEL

      if kind == Channel::INPUT
        flags = block["last"] == "true" ? 1 : 0
        return [kind, flags, block["id"].to_i, latin(JSON.parse(block["data"]))]
      end

      body = JSON.parse(block["body"]).encode("iso-8859-1").b
      flags = block["file"] == "true" ? 1 : 0
      flags |= Channel::FLAG_BODY_STREAM if block["stream"]
      [kind, flags, block["id"].to_i, [JSON.parse(block["pairs"]).to_h, body]]
    end

    def test_frames_are_received_wherever_they_are_cut
      blocks = Harness.blocks("channel_to_worker")
      blocks.select! { |block| kinds[block["kind"]] && block["websocket"] != "true" }
      assert_operator blocks.size, :>=, 5
      blocks.each do |block|
        frame = [block["ruby"] || block["hex"]].pack("H*")
        (1...frame.bytesize * 2).each do |cut|
          ours, theirs = pair
          inbox = FrameReader.new(theirs)
          frames = [(frame * 2).byteslice(0, cut), (frame * 2).byteslice(cut..)].flat_map do |data|
            ours.write(data)
            seen(inbox, inbox.receive)
          end
          assert_equal [expected(block)] * 2, frames, "#{block["name"]}, cut at #{cut}"
        end
      end
    end

    def test_frames_are_written
      checked = Harness.blocks("channel_from_worker").count do |block|
        kind, id, *rest = JSON.parse(block["send"])
        frames = written(kind, id, rest)
        next unless frames

        assert_equal block["hex"], frames.unpack1("H*"), block["name"]
        true
      end
      assert_operator checked, :>=, 5
    end

    def latin(text)
      text.encode("iso-8859-1").b
    end

    def written(kind, id, rest)
      case kind
      when "answer", "stream", "cut"
        head = Wire.join_head(rest[0].map { |text| latin(text) })
        flags = kind == "answer" ? Wire::FLAG_END : Wire::FLAG_STREAM
        first = Channel.encode_response(id, flags, rest[0].size, 0, head, latin(rest[1]))
        return first + Channel.encode_reset(id, 0, rest[2]) if kind == "cut"
        return first if kind == "answer"

        first + rest[2].map { |piece| Channel.encode_data(id, 0, latin(piece)) }.join + Channel.encode_data(id, Wire::FLAG_END, "")
      when "reset" then Channel.encode_reset(id, rest[1] ? 1 : 0, rest[0])
      when "window" then Channel.encode_window(id, rest[0])
      when "pull" then Channel.encode_pull(id)
      when "hijack" then Channel.encode_hijack(id)
      end
    end

    def test_what_the_server_cannot_mean_is_refused
      {
        "a frame of a slot" => [Wire::REQUEST, 0, 0, 4],
        "a frame of the worker's" => [Channel::DATA, 0, 0, 4],
        "a WebSocket" => [Channel::OPEN, 2, 0, 8],
        "an unknown type" => [99, 0, 0, 4],
        "a flag" => [Channel::STREAM_CANCEL, 1, 0, 4],
        "a count" => [Channel::STREAM_CANCEL, 0, 1, 4],
        "a short window" => [Channel::WINDOW, 0, 0, 4],
        "more than 64 MiB" => [Channel::OPEN, 0, 0, (64 << 20) + 1]
      }.each do |name, numbers|
        ours, theirs = pair
        ours.write([*numbers, 1].pack("CCvVV"))
        assert_raises(Wire::Error, name) { FrameReader.new(theirs).receive }
      end
    end

    def test_environments_are_checked
      inbox = FrameReader.new(pair[1])
      assert_raises(Wire::Error) { inbox.parse_open([9].pack("V")) }
      assert_raises(Wire::Error) { inbox.parse_open([1].pack("V") + "x") }
    end

    def test_the_end_of_the_channel
      ours, theirs = pair
      ours.close
      assert_nil FrameReader.new(theirs).receive
    end
  end

  # Applications on fibers.
  class FibersTest < Minitest::Test
    APP = <<~'RUBY'
      require "stringio"
      $waiting = Thread::Queue.new
      $together = 0

      class Large
        def each
          "abcdefgh".each_char { |letter| yield letter * 100_000 }
        end

        def close
          warn "large is closed"
        end
      end

      class Broken
        def each
          yield "part"
          raise ArgumentError, "late"
        end
      end

      HELLO = ->(_env) { [200, { "content-type" => "text/plain", "content-length" => "5" }, ["hello"]] }
      PATHS = {
        "/hello" => HELLO,
        "/echo" => ->(env) { [200, {}, [env["rack.input"].read]] },
        "/show" => ->(env) { [200, {}, [env.slice("REQUEST_METHOD", "rack.multithread", "SERVER_SOFTWARE").inspect]] },
        "/wait" => ->(env) { $waiting.pop; HELLO.call(env) },
        "/go" => ->(env) { 1000.times { $waiting << true }; HELLO.call(env) },
        "/nap" => ->(env) { sleep 0.2; warn "napped"; HELLO.call(env) },
        "/together" => ->(env) { $together += 1; sleep 0.01 while $together < 50; HELLO.call(env) },
        "/large" => ->(_env) { [200, {}, Large.new] },
        "/stream" => ->(_env) { [200, {}, ->(stream) { stream << "one" << "two"; stream.close }] },
        "/file" => ->(_env) { [200, {}, File.open("body")] },
        "/early" => ->(_env) { raise ArgumentError, "early" },
        "/late" => ->(_env) { [200, {}, Broken.new] },
        "/head" => ->(_env) { [200, { "a" => "b\0c" }, []] },
        "/exit" => ->(_env) { exit 3 },
        "/hijack" => lambda { |env|
          io = env["rack.hijack"].call
          io.write("same: #{io.equal?(env["rack.hijack"].call) && io.equal?(env["rack.hijack_io"])}")
          io.close
        },
        "/hijack_elsewhere" => lambda { |env|
          error = Thread.new do
            env["rack.hijack"].call
            "hijacked"
          rescue IOError => e
            e.message
          end
          [200, {}, [error.value]]
        },
        "/late_hijack" => lambda { |env|
          late = lambda do |stream|
            env["rack.hijack"].call
          rescue IOError => e
            stream.write(e.message)
          end
          [200, {}, late]
        },
        "/whole" => ->(_env) { [200, {}, ["x" * (4 << 20)]] }
      }.freeze
      run ->(env) { PATHS.fetch(env["PATH_INFO"]).call(env) }
    RUBY

    def setup
      NeedsAsync.check(self)
      @worker = Harness::ReactorWorker.new(APP, files: { "body" => "0123456789" * 50_000 }).ready
    end

    def teardown
      @worker&.stop
    end

    def test_a_whole_response_is_one_frame
      answer = @worker.ask(1, "/hello")
      assert_equal ["200", "content-type", "text/plain", "content-length", "5"], answer.strings
      assert_equal ["hello", [Channel::STREAM_RESPONSE]], [answer.body, answer.kinds]
      assert_includes @worker.ask(2, "/show").body, '"REQUEST_METHOD"=>"GET"'
    end

    def test_bodies
      assert_equal "", @worker.ask(1, "/echo").body
      assert_equal "x" * 300, @worker.ask(1, "/echo", body: "x" * 300).body
      @worker.send_file(1, "y" * 200_000)
      assert_equal 200_000, @worker.ask(1, "/echo", file: true).body.size
    end

    def test_thousand_requests_at_once
      ids = (1000...2000).to_a
      @worker.send(*ids.map { |id| @worker.open(id, "/wait") })
      @worker.send(@worker.open(3, "/go"))
      @worker.read_until { ids.all? { |id| @worker.answers[id].ended? } }
      assert_equal ["hello"], ids.map { |id| @worker.answers[id].body }.uniq
    end

    def test_a_hijacked_connection_is_one_for_its_request
      answer = @worker.ask(1, "/hijack")
      assert_equal [Channel::HIJACK, Channel::DATA], answer.kinds
      id, _, _, rights = @worker.files.socket.recvmsg(4, scm_rights: true)
      assert_equal [1].pack("V"), id
      assert_equal "same: true", rights.unix_rights[0].read
      late = @worker.ask(2, "/late_hijack").body
      assert_equal "the connection cannot be hijacked: its response has begun", late
      elsewhere = @worker.ask(3, "/hijack_elsewhere").body
      assert_equal "the connection cannot be hijacked: this is another thread than the call's", elsewhere
    end

    def test_more_hijacks_at_once_than_the_files_socket_holds
      # A Unix socket of usual size holds 278 messages with a descriptor.
      ids = (3000...3400).to_a
      @worker.send(*ids.map { |id| Harness.open_small_stream(id, "/hijack") })
      got = 0
      until ids.all? { |id| @worker.answers[id].ended? }
        id, kind = @worker.read
        next unless kind == Channel::HIJACK

        sent, _, _, rights = @worker.files.socket.recvmsg(4, scm_rights: true)
        assert_equal [id].pack("V"), sent
        rights.unix_rights[0].then { |io| assert_equal("same: true", io.read) && io.close }
        got += 1
      end
      assert_equal ids.size, got
    end

    def test_a_slow_window_stops_its_stream_alone
      @worker.send(@worker.open(1, "/large"))
      slow = @worker.answers[1]
      @worker.read_until { slow.body.bytesize == Channel::WINDOW_BYTES }
      20.times { assert_equal "hello", @worker.ask(2, "/hello").body }
      assert_equal Channel::WINDOW_BYTES, slow.body.bytesize
      @worker.send(Channel.encode_window(1, 1 << 20))
      @worker.read_until { slow.ended? }
      assert_equal "abcdefgh".each_char.map { |letter| letter * 100_000 }.join, slow.body
    end

    def test_a_client_that_leaves_a_waiting_stream
      @worker.send(@worker.open(1, "/large"))
      slow = @worker.answers[1]
      @worker.read_until { slow.body.bytesize == Channel::WINDOW_BYTES }
      @worker.send(@worker.gone(1))
      @worker.read_until { slow.ended? }
      assert_equal "cancelled", slow.reason
      assert_equal "large is closed\n", @worker.log
    end

    def test_streams_and_files
      answer = @worker.ask(1, "/stream")
      assert_equal "onetwo", answer.body
      @worker.send(@worker.open(2, "/file"), Channel.encode_window(2, 1 << 20))
      @worker.read_until { @worker.answers[2].ended? }
      assert_equal "0123456789" * 50_000, @worker.answers[2].body
    end

    def test_more_than_the_socket_holds_waits_for_the_server
      ids = (1..12).to_a
      @worker.send(*ids.map { |id| @worker.open(id, "/whole") })
      @worker.read_until { ids.all? { |id| @worker.answers[id].ended? } }
      assert_equal [4 << 20], ids.map { |id| @worker.answers[id].body.bytesize }.uniq
    end

    def test_exceptions
      { "/early" => "application raised ArgumentError", "/late" => "application raised ArgumentError",
        "/exit" => "application raised SystemExit" }.each do |path, reason|
        answer = @worker.ask(1, path)
        assert_equal [reason, 0], [answer.reason, answer.flags]
        assert_includes @worker.log, "error in GET #{path}\n"
      end
      assert_equal 1, @worker.ask(1, "/head").flags
      assert_equal "hello", @worker.ask(1, "/hello").body
    end

    def test_what_is_in_progress_is_waited_for
      @worker.send(@worker.open(1, "/nap"))
      @worker.ask(2, "/hello")
      assert_equal 0, @worker.finish.exitstatus
      assert_equal "napped\n", @worker.log
    end

    def test_who_sleeps_lets_others_run
      @worker.send(*(1..50).map { |id| @worker.open(id, "/together") })
      @worker.read_until { (1..50).all? { |id| @worker.answers[id].ended? } }
    end

    def test_stacks_of_tasks_on_sigquit
      @worker.send(@worker.open(1, "/wait"))
      @worker.ask(2, "/hello")
      Process.kill("QUIT", @worker.pid)
      Timeout.timeout(Harness::DEADLINE) { @worker.ask(2, "/hello") until @worker.log.include?("GET /wait\n") }
      assert_match(/config\.ru:\d+:in/, @worker.log)
      @worker.ask(3, "/go")
    end

    def test_nonsense_ends_the_process
      @worker.send(@worker.open(1, "/wait"), "\xff".b * 12)
      assert_equal 1, @worker.wait.exitstatus
      assert_includes @worker.log, "Wire::Error"
    end

    def test_another_stream_s_body_ends_the_process
      @worker.send_file(2, "theirs")
      @worker.send(@worker.open(1, "/echo", file: true))
      assert_equal 1, @worker.wait.exitstatus
      assert_includes @worker.log, "another request's body"
    end
  end

  # The end of endless responses, and missing ones.
  class FibersEndTest < Minitest::Test
    def test_what_never_ends_is_stopped
      NeedsAsync.check(self)
      worker = Harness::ReactorWorker.new(FibersTest::APP, stop_timeout: 0.2).ready
      worker.send(worker.open(1, "/wait"))
      worker.ask(2, "/hello")
      assert_equal 0, worker.finish.exitstatus
      assert_equal "", worker.log
    ensure
      worker&.stop
    end

    def test_workers_are_forked_from_a_template
      NeedsAsync.check(self)
      template = Harness::Template.new(<<~'RUBY', options: ["--reactor", "tasks"]).ready
        loaded = Process.pid
        run ->(_env) { sleep 0.001; [200, {}, ["#{loaded} #{Process.pid}"]] }
      RUBY
      refute_includes template.description, "prevents_fork"
      workers = Array.new(2) { Harness::ForkedReactor.new(template.control) }
      workers.each do |worker|
        worker.ready.slots[0].send(Harness.open_stream(1))
        assert worker.slots[0].frame.payload.end_with?("#{template.pid} #{worker.pid}")
      end
      workers[0].slots[0].socket.close
      assert_equal [0, ""], [workers[0].wait.exitstatus, workers[0].log]
    ensure
      workers&.each(&:stop)
      template&.stop
    end

    def test_a_missing_gem_is_named
      files = { "hide.rb" => <<~RUBY }
        module Kernel
          alias require_all require
          def require(name)
            return require_all(name) unless name == "async"
            error = LoadError.new("cannot load such file -- async")
            error.define_singleton_method(:path) { "async" }
            raise error
          end
          private :require
        end
      RUBY
      worker = Harness::ReactorWorker.new("require_relative 'hide'\n#{FibersTest::APP}", files: files)
      frame = worker.control.frame
      assert_equal Wire::BOOT_FAILED, frame.kind
      assert_match(/async = true needs/, frame.payload)
      assert_equal 1, worker.wait.exitstatus
    ensure
      worker&.stop
    end
  end
end
