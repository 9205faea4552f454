# frozen_string_literal: true

# The application of the tests in `processes` in Ruby: each path causes one kind of damage, and the file
# `boot` names the failure while it is loaded, as in `misbehaving.py`.

LIFE = 60
FOLDER = Dir.pwd
LEAKED = [] # rubocop:disable Style/MutableConstant

def note(name, line = Process.pid)
  File.open(File.join(FOLDER, name), "a") { |file| file.write("#{line}\n") }
end

# Looks seldom: on a busy machine a thread that polls seems to compute.
def wait_for(name)
  sleep(0.05) until File.exist?(File.join(FOLDER, name))
end

# Waits to be killed, and ends by itself otherwise.
def linger
  sleep(LIFE)
  exit!(0)
end

def fork_apart(&block)
  Process.wait(fork do
    Process.setsid
    fork(&block)
    exit!(0)
  end)
end

# A process that forks two that do the same, `depth` times.
def tree(depth, leads)
  Process.setsid if leads
  note("children")
  (depth.zero? ? 0 : 2).times { fork { tree(depth - 1, leads) } }
  linger
end

def leave_children
  fork do
    note("children")
    linger
  end
  fork_apart do
    note("children")
    linger
  end
  note("children", spawn("sleep", LIFE.to_s))
end

# The senders stay until the signals were handled, as a sender that is gone cannot be identified.
def tell_parent(signal)
  server = Process.ppid
  Process.kill(signal, server)
  script = "sleep 1.2; kill -s #{signal} #{server}; while [ ! -e heard ]; do sleep 0.05; done"
  spawn("timeout", LIFE.to_s, "sh", "-c", script)
  fork_apart do
    sleep(2.4)
    Process.kill(signal, server)
    note("told")
    wait_for("heard")
    exit!(0)
  end
  server
end

ACTS = {
  "version" => ->(_) { ENV["VERSION"] },
  "hold" => lambda do |name|
    note("begun")
    wait_for(name)
    Process.pid
  end,
  "leave" => ->(_) { exit!(0) },
  "exit" => ->(_) { exit(0) },
  "stuck" => lambda do |_|
    note("begun")
    sleep(3600)
  end,
  "garbage" => lambda do |_|
    rubbish = (0..255).to_a.reverse.pack("C*")
    (3...1024).each do |number|
      io = IO.for_fd(number, "w", autoclose: false)
      io.write_nonblock(rubbish)
    rescue SystemCallError, ArgumentError, IOError
      nil
    end
    Process.pid
  end,
  "flood" => lambda do |times|
    rubbish = "\x00\xff\x1b[2J\r".b + ("x" * 65_000)
    times.to_i.times { [$stdout, $stderr].each { |io| io.syswrite(rubbish) } }
    $stderr.syswrite("the flood is over\n")
    Process.pid
  end,
  "descriptors" => lambda do |_|
    Process.setrlimit(Process::RLIMIT_NOFILE, 128, 128)
    File.open("leaked", "a") do |file|
      loop { LEAKED << File.open("/dev/null") }
    rescue Errno::EMFILE => e
      file.write("#{e.message}\n")
    end
    # The descriptor of that file is used too.
    LEAKED << File.open("/dev/null")
    Process.pid
  end,
  "oom" => lambda do |_|
    pages, = File.read("/proc/self/statm").split
    limit = (pages.to_i * 4096) + (64 << 20)
    Process.setrlimit(:AS, limit, limit)
    hoard = []
    loop { hoard << ("x" * (1 << 20)) }
  end,
  "leak" => lambda do |megabytes|
    LEAKED << ("x" * (megabytes.to_i << 20))
    Process.pid
  end,
  "umask" => lambda do |_|
    Dir.chdir("/")
    File.umask(0o777)
    Process.pid
  end,
  "user" => lambda do |_|
    Process::GID.change_privilege(65_534)
    Process::UID.change_privilege(65_534)
    Process.pid
  end,
  "close" => lambda do |_|
    (3...1024).each do |number|
      IO.for_fd(number).close
    rescue SystemCallError, ArgumentError
      nil
    end
    Process.pid
  end,
  "bomb" => lambda do |_|
    [false, true].each { |leads| fork { tree(5, leads) } }
    Process.pid
  end,
  "children" => lambda do |_|
    leave_children
    Process.pid
  end,
  "parent" => ->(signal) { tell_parent(signal.delete_prefix("SIG")) }
}.freeze

BOOTS = {
  "crash" => -> { raise "no such table: customers" },
  "hang" => lambda do
    note("booting")
    sleep
  end,
  "slow" => lambda do
    note("booting")
    wait_for("go")
  end,
  "exit_0" => -> { exit!(0) },
  "no_forks" => lambda do
    if Process.uid.zero?
      Process::GID.change_privilege(65_534)
      Process::UID.change_privilege(65_534)
    end
    Process.setrlimit(Process::RLIMIT_NPROC, 1, 1)
  end,
  "hang_at_exit" => lambda do
    at_exit do
      note("ending")
      sleep(LIFE)
    end
  end,
  "no_signals" => lambda do
    trap("CHLD", "IGNORE")
    trap("TERM", "IGNORE")
  end,
  "kill_parent" => -> { %w[TERM HUP].each { |signal| Process.kill(signal, Process.ppid) } },
  "leave_children" => -> { leave_children }
}.freeze

note("boots")
note("priorities", Process.getpriority(Process::PRIO_PROCESS, 0))
wish = File.exist?("boot") ? File.read("boot").strip : ""
BOOTS.fetch(wish).call unless wish.empty?

run(lambda do |env|
  name, = env["PATH_INFO"].delete_prefix("/").split("/")
  body = ACTS.fetch(name, ->(_) { Process.pid }).call(env["QUERY_STRING"]).to_s
  [200, { "content-type" => "text/plain" }, [body]]
end)
