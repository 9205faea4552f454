# frozen_string_literal: true

# Request bodies that arrive while the application runs: in threads, with Rack 2 and a stand-in for
# Rack 3, and on fibers.

require "minitest/autorun"
require_relative "channel_harness"

module PenstockWorker
  # The reads of the input, by pieces.
  class BodyReadsTest < Minitest::Test
    def body(first, *pieces)
      # As the worker makes them: new strings.
      pull = -> { (piece = pieces.shift) && [piece[0].dup, piece[1]] }
      StreamedBody.new(pull, first)
    end

    def each_kind(...)
      [body(...), RewindableBody.new(body(...))].each { |body| yield body }
    end

    WHOLE = "one\ntwo\nthree"

    def test_all_the_ways_to_read
      [[["one\ntwo\nth", false], ["ree", true]], [["one\ntwo\nthree", true]]].each do |pieces|
        each_kind("", *pieces) do |body|
          assert_equal [WHOLE, "", nil], [body.read, body.read, body.read(1)]
        end
        each_kind("", *pieces) { |body| assert_equal ["one\n", "two\n", "three"], body.each.to_a }
        each_kind("0", *pieces) do |body|
          assert_equal "0one\n", body.gets
          assert_equal ["two\nth", "ree", nil], Array.new(3) { body.read(6) }
        end
        each_kind("", *pieces) do |body|
          buffer = String.new("before")
          assert_same buffer, body.read(5, buffer)
          assert_equal "one\nt", buffer
          assert_equal "wo\n", body.gets
          assert_equal "three", body.readpartial(3) + body.read
          assert_raises(EOFError) { body.readpartial(1) }
          assert_nil body.gets
          assert_nil body.read(1, buffer)
          assert_equal "", buffer
        end
      end
      each_kind("ab", ["", true]) { |body| assert_equal "ab", body.read }
      each_kind("ab") { |body| assert_equal "", body.read(0) }
    end

    def test_what_was_read_can_be_rewound
      body = RewindableBody.new(body("one\n", ["two\n", false], ["three", true]))
      assert_equal "one\n", body.gets
      body.rewind
      assert_equal WHOLE, body.read
      body.rewind
      assert_equal [WHOLE, WHOLE.bytesize], [body.read(100), body.size]
      body.close
    end

    def test_a_cut_body_never_looks_complete
      reads = [:read, ->(body) { body.read(100) }, :gets, ->(body) { body.each.to_a }]
      reads.map(&:to_proc).each do |read|
        each_kind("first", ["second", false]) do |body|
          3.times { assert_raises(RequestBodyCut) { read.call(body) } }
        end
      end
    end
  end

  # The pieces as the server sends them, for threads.
  module UploadTests
    APP = <<~'RUBY'
      class Echo
        def initialize(body)
          @body = body
        end

        def each
          yield "go"
          loop { yield "<#{@body.readpartial(100)}>" }
        rescue EOFError
          nil
        end
      end

      run(lambda do |env|
        body = env["rack.input"]
        answer =
          case env["PATH_INFO"]
          when "/whole" then [body.read]
          when "/early" then ["early"]
          when "/echo" then Echo.new(body)
          when "/leave"
            Thread.new { body.read }.report_on_exception = false
            Thread.pass until $pulled || File.exist?("pulled")
            ["left"]
          when "/timeout"
            require "timeout"
            begin
              Timeout.timeout(0.05) { body.read }
            rescue Timeout::Error
              ["late"]
            end
          end
        [200, {}, answer]
      end)
    RUBY

    def setup
      @worker = Harness::Worker.new(APP, **stand_in).ready
      @slot = @worker.slots[0]
    end

    def teardown
      @worker.stop
    end

    def streamed(path, first = "")
      frame = Harness.request({ "PATH_INFO" => path }, body: first)
      frame.setbyte(1, Wire::FLAG_BODY_STREAM)
      frame
    end

    def input(data = "", flags = 0)
      Wire.frame(Wire::INPUT, flags, data)
    end

    def expect_pull
      assert_equal Wire::PULL, @slot.frame.kind
    end

    def test_a_body_is_pulled_piece_by_piece
      @slot.send(streamed("/whole", "one "))
      [["two ", 0], ["three", Wire::FLAG_END]].each do |data, flags|
        expect_pull
        @slot.send(input(data, flags))
      end
      assert_equal "one two three", @slot.reply.body
    end

    def test_an_answer_goes_on_between_the_pieces
      @slot.send(streamed("/echo"))
      head = @slot.frame
      assert_equal [Wire::HEAD, "go"], [head.kind, head.payload[-2..]]
      %w[one two].each do |data|
        expect_pull
        @slot.send(input(data))
        assert_equal "<#{data}>", @slot.frame.payload
      end
      expect_pull
      @slot.send(input("", Wire::FLAG_END))
      assert_equal Wire::FLAG_END, @slot.frame.flags
    end

    def test_a_cut_body_is_an_error_of_nobody_s
      before = @worker.log
      @slot.send(streamed("/whole", "one"))
      expect_pull
      @slot.send(input("", Wire::FLAG_INPUT_ABORTED))
      assert_equal [Wire::FAILED], @slot.reply.frames
      assert_equal before, @worker.log
    end

    def test_what_nobody_reads_is_not_pulled
      3.times do
        @slot.send(streamed("/early", "one"))
        assert_equal "early", @slot.reply.body
      end
    end

    def test_a_thread_that_still_waits_takes_nothing_of_the_next_request
      @slot.send(streamed("/leave"))
      expect_pull
      File.write("#{@worker.dir}/pulled", "")
      assert_equal "left", @slot.reply.body
      @slot.send(input("", Wire::FLAG_INPUT_ABORTED) + Harness.request({ "PATH_INFO" => "/early" }))
      assert_equal "early", @slot.reply.body
    end

    def test_a_read_that_is_given_up_leaves_nothing_to_the_next_request
      @slot.send(streamed("/timeout"))
      expect_pull
      assert_equal "late", @slot.reply.body
      @slot.send(input("too late") + Harness.request({ "PATH_INFO" => "/early" }))
      assert_equal "early", @slot.reply.body
      @slot.send(streamed("/whole", "a"))
      expect_pull
      @slot.send(input("b", Wire::FLAG_END))
      assert_equal "ab", @slot.reply.body
    end
  end

  # With the installed Rack.
  class UploadsTest < Minitest::Test
    include UploadTests

    def stand_in
      {}
    end
  end

  # With Rack 3.
  class UploadsRack3Test < Minitest::Test
    include UploadTests

    def stand_in
      { env: { "RUBYLIB" => File.expand_path("rack3", __dir__) } }
    end
  end

  # On fibers.
  class UploadsOnFibersTest < Minitest::Test
    APP = UploadTests::APP

    def setup
      installed = Gem::Specification.find_all_by_name("async").any?
      installed &&= Fiber.respond_to?(:set_scheduler)
      skip "async is not installed" unless installed
      @worker = Harness::ReactorWorker.new(APP).ready
    end

    def teardown
      @worker&.stop
    end

    def begin_stream(id, path, first = "")
      frame = @worker.open(id, path, body: first)
      frame.setbyte(1, Channel::FLAG_BODY_STREAM)
      @worker.send(frame)
      @worker.answers[id]
    end

    def input(id, data = "", flags = 0)
      Wire.frame(Channel::INPUT, flags, [id].pack("V") + data)
    end

    # Reads until this stream has asked for more.
    def expect_pull(id)
      kind = stream = nil
      until kind == Channel::PULL && stream == id
        kind, flags, count, length = @worker.channel.take(8).unpack("CCvV")
        payload = @worker.channel.take(length)
        stream = payload.unpack1("V")
        next if kind == Channel::PULL

        @worker.answers[stream].take(kind, flags, count, payload.byteslice(4..))
      end
    end

    def test_one_that_waits_stops_nobody_else
      waits = begin_stream(1, "/whole", "one ")
      expect_pull(1)
      echo = begin_stream(2, "/echo")
      expect_pull(2)
      @worker.send(input(2, "two", Wire::FLAG_END))
      @worker.read_until { echo.ended? }
      assert_equal "go<two>", echo.body
      @worker.send(input(1, "three", Wire::FLAG_END))
      @worker.read_until { waits.ended? }
      assert_equal "one three", waits.body
    end

    def test_a_client_that_leaves_cuts_the_body
      before = @worker.log
      answer = begin_stream(1, "/whole", "one")
      expect_pull(1)
      @worker.send(@worker.gone(1))
      @worker.read_until { answer.ended? }
      assert_equal [Channel::RESET], answer.kinds
      assert_equal before, @worker.log
    end
  end
end
