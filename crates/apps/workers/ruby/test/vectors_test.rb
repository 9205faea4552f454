# frozen_string_literal: true

# Replays the vectors in `crates/wire/vectors`, which the Rust and Python tests replay too.

require "minitest/autorun"
require_relative "harness"

class VectorsTest < Minitest::Test
  include Harness

  def setup
    @open = []
  end

  def teardown
    @open.each { |socket| socket.close unless socket.closed? }
  end

  # Returns the server's end of a socket, and a slot at the other.
  def slot
    ours, theirs = UNIXSocket.pair
    @open << ours << theirs
    [Harness::Peer.new(ours), PenstockWorker::Slot.new(theirs)]
  end

  def binary(text)
    text.encode(Encoding::ISO_8859_1).b
  end

  def pairs(block)
    JSON.parse(block["pairs"]).to_h { |key, value| [binary(key), value.is_a?(String) ? binary(value) : value] }
  end

  def bytes(hex)
    [hex].pack("H*")
  end

  def test_environments_load
    Harness.blocks("environ").each do |block|
      loaded = PenstockWorker::Slot.new(STDOUT).send(:environment, bytes(block["ruby"]).split("\0", -1))
      assert_equal pairs(block), loaded, block["name"]
      texts = loaded.to_a.flatten.grep(String)
      assert(texts.all? { |text| text.encoding == Encoding::BINARY }, block["name"])
      refute loaded.values.grep(String).any?(&:frozen?), block["name"]
    end
  end

  def test_requests_are_received_wherever_they_are_cut
    stray = Harness.cancel(7)
    Harness.blocks("to_worker").select { |block| block["pairs"] }.each do |block|
      frame = bytes(block["ruby"])
      body = block["file"] == "true" ? nil : binary(JSON.parse(block["body"]))
      (1...(frame.bytesize * 2)).each do |cut|
        received = receive_in_two(stray + frame + frame, cut, stray.bytesize + frame.bytesize)
        assert_equal [[pairs(block), body]] * 2, received, "#{block["name"]} cut at #{cut}"
        is_first = received[0][1].instance_of?(Wire::PartialBody)
        assert_equal !block["stream"].nil?, is_first, block["name"]
      end
    end
  end

  def test_pieces_of_a_body_are_received_wherever_they_are_cut
    request = Harness.blocks("to_worker").find { |block| block["stream"] }
    pieces = Harness.blocks("to_worker").select { |block| block["input"] }
    assert_equal 4, pieces.size
    pieces.each do |block|
      frame = bytes(block["both"])
      flags = Integer(block["flags"])
      piece = [binary(JSON.parse(block["input"])), flags == Wire::FLAG_END]
      (0...frame.bytesize).each do |cut|
        peer, slot = self.slot
        peer.socket.write(bytes(request["ruby"]))
        assert_equal binary("x=\u00ff"), slot.receive[1]
        pull = slot.body_puller
        peer.socket.write(frame.byteslice(0, cut))
        seen = Thread.new { pull.call }
        assert_equal Wire::PULL, peer.take(8).getbyte(0)
        peer.socket.write(frame.byteslice(cut..))
        assert seen.join(10), block["name"]
        expected = flags == Wire::FLAG_INPUT_ABORTED ? [nil] : [piece]
        assert_equal expected, [seen.value], "#{block["name"]} cut at #{cut}"
      end
    end
  end

  def receive_in_two(data, cut, first_bytes)
    peer, slot = self.slot
    peer.socket.write(data.byteslice(0, cut))
    received = cut >= first_bytes ? [slot.receive] : []
    peer.socket.write(data.byteslice(cut..))
    peer.socket.close_write
    while (request = slot.receive)
      received << request
    end
    [peer.socket, slot.instance_variable_get(:@socket)].each(&:close)
    received
  end

  def test_cancels_are_seen_for_the_request_in_progress_only
    Harness.blocks("to_worker").select { |block| block["seq"] }.each do |block|
      peer, slot = self.slot
      peer.socket.write(bytes(block["both"]))
      slot.seq = 3
      refute slot.cancelled?, block["name"]
      slot.instance_variable_set(:@scanned_to, 0)
      slot.seq = Integer(block["seq"])
      assert slot.cancelled?, block["name"]
    end
  end

  def test_frames_beside_responses_are_written
    Harness.blocks("words_of_worker").each do |block|
      peer, slot = self.slot
      # The first request has been received.
      slot.seq = 0
      case block["say"]
      when "io_bound" then assert slot.mark_as_io_bound, block["name"]
      when "pull"
        peer.socket.write(bytes("0402000000000000"))
        assert_nil slot.pull(0), block["name"]
      when "extend" then assert slot.extend_timeout(Integer(block["seconds"])), block["name"]
      else slot.send(:answer_gc, 0, 0, 0)
      end
      expected = bytes(block["hex"])
      assert_equal block["hex"], peer.take(expected.bytesize).unpack1("H*"), block["name"]
    end
  end

  def test_a_collection_is_answered_wherever_its_frame_is_cut
    data = bytes(Harness.blocks("to_worker").find { |block| block["name"].start_with?("collect") }["both"])
    (1...data.bytesize).each do |cut|
      peer, slot = self.slot
      done = 0
      slot.collect = -> { done += 1 }
      peer.socket.write(data.byteslice(0, cut))
      peer.socket.write(data.byteslice(cut..))
      peer.socket.close_write
      assert_nil slot.receive
      assert_equal 1, done
      assert_equal Wire::GARBAGE_COLLECTED, peer.take(8).getbyte(0)
    end
  end

  def test_nonsense_ends_the_process
    Harness.blocks("to_worker_refused").each do |block|
      peer, slot = self.slot
      peer.socket.write(bytes(block["hex"]))
      peer.socket.close_write
      assert_raises(PenstockWorker::Wire::Error, TypeError, ArgumentError, block["name"]) { slot.receive }
    end
  end

  def test_responses_are_written
    Harness.blocks("from_worker").each do |block|
      peer, slot = self.slot
      send_as_told(slot, *JSON.parse(block["send"]))
      expected = bytes(block["hex"])
      data = peer.take(expected.bytesize)
      data[8, 4] = "\0\0\0\0" if data.getbyte(0) == Wire::HEAD
      assert_equal block["hex"], data.unpack1("H*"), block["name"]
    end
  end

  # Does what a `send` line of the vectors names.
  def send_as_told(slot, what, *rest)
    return slot.send(:send_bytes, Wire.frame(Wire::FD_REQUEST, 0, "")) if what == "fd_please"
    if what == "hijack"
      # The first request has been received.
      slot.seq = 0
      slot.bind_thread
      slot.instance_variable_set(:@env, {})
      slot.hijack.close
      return slot.send_end
    end
    return slot.send_failure(Wire::FAILED, rest[1] ? Wire::FLAG_PROTOCOL_ERROR : 0, rest[0]) if what == "failed"

    strings = rest.shift.map { |text| binary(text) }
    head = Wire.join_head(strings)
    arguments = [strings.size, head, Wire.micros]
    case what
    when "whole" then slot.send_whole(*arguments, binary(rest[0]))
    when "file"
      File.open(__FILE__) { |file| slot.send_file(*arguments, file, rest[0], rest[1] || Wire::UNTIL_END) }
    else
      slot.send_head(*arguments, binary(rest[0]))
      rest[1].each { |chunk| slot.send_body(binary(chunk)) }
      what == "abort" ? slot.send_failure(Wire::ABORT, 0, rest[2]) : slot.send_end
    end
  end

  def test_control_frames_are_written
    Harness.blocks("control").each do |block|
      payload = block["text"] ? JSON.parse(block["text"]) : [PenstockWorker::Wire::PROTOCOL_VERSION].pack("V")
      frame = Wire.frame(Integer(block["kind"]), 0, payload)
      assert_equal block["hex"], frame.unpack1("H*"), block["name"]
    end
  end

  def test_control_frames_are_received_wherever_they_are_cut
    Harness.blocks("control_to_process").each do |block|
      data = [block["hex"]].pack("H*")
      files = block["worker"] ? 3 : block.fetch("kinds", "").size
      (1..data.bytesize).each do |cut|
        ours, theirs = Harness.pair
        rights = [Socket::AncillaryData.unix_rights(*[ours] * files)] if files.positive?
        ours.sendmsg(data[0, cut], 0, nil, *rights)
        ours.write(data[cut..])
        kind, flags, payload, received = Wire.receive_control(theirs)
        assert_equal [Integer(block["kind"]), files, data.byteslice(8..)], [kind, received.size, payload]
        assert_equal block["last"] == "true" ? 1 : 0, flags
        assert received.all?(&:close_on_exec?)
      ensure
        [ours, theirs, *received].each(&:close)
      end
    end
  end

  def test_other_control_frames_are_refused
    ["GET / HTTP/1.1\r\n", [Wire::FORK, 0, 0, 65].pack("CCvV")].each do |data|
      ours, theirs = Harness.pair
      ours.write(data)
      assert_raises(Wire::Error) { Wire.receive_control(theirs) }
    ensure
      [ours, theirs].each(&:close)
    end
  end

  def test_a_request_larger_than_the_buffer_is_followed_by_a_small_one
    bodies = ["x", Random.bytes(300_000), "x"]
    peer, slot = self.slot
    peer.socket.setsockopt(:SOCKET, :SNDBUF, 1 << 20)
    peer.send(bodies.sum("") { |body| Harness.request({}, body: body) })
    received = Array.new(3) { slot.receive[1] }
    assert_equal bodies.map(&:b), received
  end
end
