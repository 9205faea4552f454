# frozen_string_literal: true

# Hooks of real templates and workers: their order, their arguments, and what a failure does.

require "minitest/autorun"
require_relative "harness"

class HooksTest < Minitest::Test
  Wire = PenstockWorker::Wire

  APP = <<~'RUBY'
    run ->(_env) { [200, {}, [File.read(ENV.fetch("PENSTOCK_TEST_LOG"))]] }
  RUBY

  # Every hook writes a line with its arguments to the file that the application answers with.
  NOTE = <<~'RUBY'
    def note(*facts)
      File.write(ENV.fetch("PENSTOCK_TEST_LOG"), "#{facts.join(" ")}\n", mode: "a")
    end
    note "loaded"
  RUBY

  PUMA = NOTE + <<~'RUBY'
    workers ENV.fetch("WEB_CONCURRENCY") { 2 }
    threads 1, 5
    preload_app!
    port ENV.fetch("PORT", 3000)
    plugin :tmp_restart
    before_fork { note "before_fork", Process.pid }
    on_worker_boot { |index| note "on_worker_boot", index }
    before_worker_boot(:key) { note "before_worker_boot" }
    after_worker_fork { |index| note "after_worker_fork", index }
    on_worker_shutdown { |index| note "on_worker_shutdown", index }
    on_restart { note "on_restart" }
  RUBY

  UNICORN = NOTE + <<~'RUBY'
    worker_processes 2
    listen "/run/unicorn.sock", backlog: 64
    before_fork { |server, worker| note "before_fork", server.pid == Process.ppid, worker.nr, worker.pid.inspect }
    after_fork do |server, worker|
      server.logger.info("worker=#{worker.nr} ready")
      note "after_fork", worker.nr, worker.pid == Process.pid
    end
  RUBY

  OWN = NOTE + <<~'RUBY'
    on_boot { note "on_boot" }
    before_fork { |worker| note "before_fork", worker.age }
    after_fork { |worker| note "after_fork", worker.age, worker.pid == Process.pid }
    after_fork { note "after_fork again" }
    worker_exit { |_server, worker| note "worker_exit", worker.age }
  RUBY

  def setup
    @folder = Dir.mktmpdir("penstock-hooks-")
    @log = "#{@folder}/log"
    File.write(@log, "")
  end

  def teardown
    FileUtils.remove_entry(@folder)
  end

  def start(kind, source, name = "penstock_hooks.rb")
    File.write("#{@folder}/#{name}", source)
    options = ["--hooks", "#{@folder}/#{name}", "--worker-number", "3"]
    process = Harness.const_get(kind).new(APP, options: options, env: { "PENSTOCK_TEST_LOG" => @log })
    yield process
  ensure
    process&.stop
  end

  def forked(template)
    worker = template.fork
    yield worker
  ensure
    worker&.stop
  end

  def lines
    File.readlines(@log, chomp: true)
  end

  def test_a_file_of_pumas_is_called_and_its_settings_are_not_read
    start(:Template, PUMA, "puma.rb") do |template|
      template.ready
      assert_equal "puma.rb: never called by Penstock: on_restart\n", template.log
      forked(template) do |worker|
        answer = worker.ready.ask(Harness.request).body.lines(chomp: true)
        expected = ["loaded", "before_fork #{template.pid}", "before_worker_boot", "on_worker_boot 7"]
        assert_equal expected, answer - ["after_worker_fork 7"]
        assert_predicate worker.dismiss.wait, :success?
      end
      Timeout.timeout(Harness::DEADLINE) { Thread.pass until lines.include?("after_worker_fork 7") }
      assert_equal "on_worker_shutdown 7", (lines - ["after_worker_fork 7"]).last
    end
  end

  def test_two_arguments_are_the_server_and_the_worker
    start(:Template, UNICORN, "unicorn.rb") do |template|
      template.ready
      forked(template) do |worker|
        worker.ready
        assert_equal ["loaded", "before_fork true 7 nil", "after_fork 7 true"], lines
        assert_equal "worker=7 ready\n", worker.log
      end
    end
  end

  def test_a_worker_that_is_not_forked_has_the_hooks_of_both
    start(:Worker, OWN) do |worker|
      worker.ready
      assert_equal ["loaded", "on_boot", "after_fork 3 true", "after_fork again"], lines
    end
    assert_equal "worker_exit 3", lines.last
  end

  def test_a_hook_that_fails_ends_the_boot_with_its_error
    %w[on_starting on_boot before_fork after_fork].each do |name|
      start(:Template, "#{name} { raise ArgumentError, 'no database' }\n") do |template|
        if name.start_with?("on_")
          frame = template.control.frame
        else
          template.ready
          forked(template) { |worker| frame = worker.boot }
        end
        assert_equal Wire::BOOT_FAILED, frame.kind, name
        assert_match(/penstock_hooks\.rb:1:in .*no database \(ArgumentError\)/, frame.payload, name)
        refute_includes frame.payload, "boot.rb", name
      end
    end
  end

  def test_files_that_are_no_hooks_are_refused
    [
      ["x = 1\n", /has no hook: write a block for one of on_starting, on_boot/],
      ["befor_fork { nil }\n", /undefined method .befor_fork'/],
      ["on_boot\n", /on_boot needs a block/],
      ["on_boot {\n", /SyntaxError|syntax error/],
      ["require 'missing_library'\n", /cannot load such file -- missing_library/]
    ].each do |source, expected|
      start(:Worker, source) do |worker|
        frame = worker.control.frame
        assert_equal Wire::BOOT_FAILED, frame.kind, source
        assert_match expected, frame.payload
      end
    end
  end

  def test_a_word_that_is_unknown_in_a_hook_is_a_mistake_in_pumas_file_too
    start(:Worker, "workers 2\non_boot { disconnect_al }\n", "puma.rb") do |worker|
      frame = worker.control.frame
      assert_equal Wire::BOOT_FAILED, frame.kind
      assert_match(/disconnect_al/, frame.payload)
    end
  end

  def test_a_failure_at_the_end_is_written_down
    start(:Template, "worker_exit { raise 'too late' }\n") do |template|
      template.ready
      forked(template) do |worker|
        assert_predicate worker.ready.dismiss.wait, :success?
        assert_match(/\Aerror in a hook of worker_end\n.*too late \(RuntimeError\)\n\z/m, worker.log)
      end
    end
  end
end
