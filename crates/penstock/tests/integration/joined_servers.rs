//! An application on another machine serves as if it were local: `penstock work` joins, and its
//! failures cost no more than a worker's death.
//!
//! Two or three real servers, connected over a Unix socket in the front end's directory, or over a
//! TCP port; with TLS, which is the default, where a test does not say otherwise.

mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, is_alive, kill, texts};

const KEY: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";

/// The front end's configuration with more lines for its upstream.
fn front_toml(upstream: &str) -> String {
    format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n\
         join = {{ listen = \"unix:join.sock\", key = \"{KEY}\" }}\n\
         [upstreams.site]\njoinable = true\n{upstream}\n\
         [[sites]]\n[[sites.routes]]\npath = \"/kept/*\"\ninternal = true\nfiles = {{ root = \".\" }}\n\
         [[sites.routes]]\nupstream = \"site\"\n"
    )
}

fn front(upstream: &str) -> Server {
    let site = Site::new().file("kept/a.txt", "kept here");
    site.config(&front_toml(upstream)).serve(&[])
}

/// A site of the application, with the key.
fn application() -> Site {
    Site::with_app().file("key", format!("{KEY}\n"))
}

/// Joins a site's application, with one process and more arguments.
fn join(site: &Site, front: &Server, more: &[&str]) -> Server {
    let socket = front.site().dir().join("join.sock");
    let address = format!("unix:{}", socket.display());
    let arguments = ["--join", &address, "--key-file", "key", "--processes", "1"];
    site.work(&[&arguments, more].concat())
}

/// The names of the servers that accept requests.
fn up(front: &Server) -> Vec<String> {
    let status = front.admin_json();
    let servers = status["upstreams"][0]["servers"].as_array().unwrap();
    let up = servers.iter().filter(|it| it["state"] == "up");
    up.map(|it| it["name"].as_str().unwrap().to_owned())
        .collect()
}

fn wait_up(front: &Server, count: usize) {
    eventually(PATIENCE, &format!("{count} serve"), || {
        up(front).len() == count
    });
}

fn waiting(front: &Server) -> u64 {
    let status = front.admin_json();
    status["upstreams"][0]["queue"]["length"].as_u64().unwrap()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Reads a response until a text has arrived.
fn read_to(client: &mut RawClient, text: &str) {
    let has_come = |client: &RawClient| String::from_utf8_lossy(&client.received).contains(text);
    while !has_come(client) {
        assert!(client.read_some().is_some(), "it ends before {text:?}");
    }
}

/// Sends one request; returns whether the connection stays open after the response.
fn ask(client: &mut RawClient, request: &str) -> Result<bool, String> {
    client
        .try_send(request)
        .map_err(|error| error.to_string())?;
    let answer = client.try_response(false);
    let answer = answer.map_err(|broken| format!("{broken:?}"))?;
    match answer.status {
        200 => Ok(answer.header("connection") != Some("close")),
        status => Err(format!("{status}: {}", answer.text())),
    }
}

/// Clients that send requests all the time, each on its own kept connection, and their errors.
struct ClientLoad {
    over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    clients: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl ClientLoad {
    fn on(server: &Server) -> Self {
        let (over, served) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let port = server.port();
        let client = |number: usize| {
            let (over, served) = (Arc::clone(&over), Arc::clone(&served));
            // One that may be repeated, and one that must not.
            let request = match number % 2 {
                0 => get("/a"),
                _ => "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc".into(),
            };
            std::thread::spawn(move || {
                let (mut client, mut failed) = (RawClient::connect(port), Vec::new());
                while !over.load(Ordering::Relaxed) {
                    let got = ask(&mut client, &request);
                    match &got {
                        Ok(_) => drop(served.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => failed.push(error.clone()),
                    }
                    if got != Ok(true) {
                        client = RawClient::connect(port);
                    }
                }
                failed
            })
        };
        let clients = (0..4).map(client).collect();
        Self {
            over,
            served,
            clients,
        }
    }

    /// Waits until this many more requests have succeeded.
    fn go_on(&self, more: usize) {
        let wanted = self.served.load(Ordering::Relaxed) + more;
        eventually(PATIENCE, "requests are served", || {
            self.served.load(Ordering::Relaxed) >= wanted
        });
    }

    /// Stops; returns the errors.
    fn end(self) -> Vec<String> {
        self.over.store(true, Ordering::Relaxed);
        let failed = self.clients.into_iter();
        failed.flat_map(|it| it.join().unwrap()).collect()
    }
}

#[test]
fn what_is_asked_there_is_answered_as_if_it_were_here() {
    let front = front("");
    let site = application().file("public/file.txt", "of its public folder");
    let worker = join(&site, &front, &["--threads", "2"]);
    wait_up(&front, 1);
    assert!(up(&front)[0].ends_with(" (joined)"), "{:?}", up(&front));
    let answer = front.get("/hello?x");
    assert_eq!(
        (answer.status, answer.text().split(' ').nth(1)),
        (200, Some("/hello"))
    );
    assert_eq!(front.get("/file.txt").text(), "of its public folder");
    assert_eq!(front.get("/status/404").status, 404);
    assert_eq!(front.get("/chunks").text().len(), 15_008);
    assert_eq!(front.get("/big").body.len(), 8 << 20);
    let mut client = front.connect();
    let body = "0123456789".repeat(300_000);
    let length = body.len();
    client.send(format!(
        "POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    let expected = format!("POST /up {length} ");
    assert!(client.expect_status(200).text().starts_with(&expected));
    // A first piece has arrived while the last is not made yet.
    client.send(get("/stream/open"));
    client.expect_head(200);
    read_to(&mut client, "first");
    site.write("open", "");
    read_to(&mut client, "last");
    drop(client);
    let announced = worker.announced();
    assert!(
        !announced.iter().any(|line| line.starts_with("listening")),
        "it listens to nobody: {announced:?}"
    );
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait_exit(PATIENCE).code(), Some(0));
    front.wait_log("(joined) left");
}

#[test]
fn what_it_says_to_a_front_end_is_for_the_one_that_has_the_client() {
    const APP: &str = r#"
def app(environ, start_response):
    fields = {
        "/redirect": [("X-Accel-Redirect", "/kept/a.txt")],
        "/hold": [("Grip-Hold", "stream"), ("Grip-Channel", "news"), ("Content-Type", "text/plain")],
        "/cache": [("X-Accel-Expires", "1")],
        "/flush": [("X-Accel-Buffering", "no")],
        "/start": [],
    }[environ["PATH_INFO"]]
    start_response("200 OK", fields)
    return [environ["HTTP_X_REQUEST_START"].encode()]
"#;
    let front = front("grip = true\nsendfile = true");
    let mut early = front.connect();
    early.send("GET /start HTTP/1.1\r\nHost: a\r\nX-Request-Start: t=1\r\n\r\n");
    eventually(PATIENCE, "it waits for one to join", || {
        waiting(&front) == 1
    });
    let waited = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let site = application().file("app.py", APP);
    let _worker = join(&site, &front, &[]);
    wait_up(&front, 1);
    // The time when the front end got it, not the client's field, nor the time when the
    // application's machine got it.
    let started = early.expect_status(200).text();
    let seconds: f64 = started.strip_prefix("t=").unwrap().parse().unwrap();
    assert!(
        1e9 < seconds && seconds <= waited.as_secs_f64(),
        "{started}"
    );
    assert_eq!(front.get("/redirect").text(), "kept here");
    let answer = front.get("/cache");
    assert_eq!(answer.header("x-accel-expires"), None, "no client sees it");
    assert_eq!(front.get("/flush").header("x-accel-buffering"), None);
    let mut client = front.connect();
    client.send(get("/hold"));
    let head = client.expect_head(200);
    assert_eq!(head.header("grip-hold"), None);
    eventually(PATIENCE, "the front end holds it", || {
        front.admin_json()["hub"]["streams"] == 1
    });
    let admin = format!("127.0.0.1:{}", front.admin_port());
    let published = front
        .site()
        .run(&["publish", "news", "more", "--admin", &admin]);
    assert_eq!(published.status.code(), Some(0), "{:?}", texts(&published));
    read_to(&mut client, "more");
}

#[test]
fn websockets_have_a_connection_each_as_many_as_come() {
    const APP: &str = r#"
async def app(scope, receive, send):
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"] + "!"})
"#;
    const ASKED: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let front = front("");
    let site = application().file("app.py", APP);
    let _worker = join(&site, &front, &[]);
    wait_up(&front, 1);
    let mut clients: Vec<RawClient> = (0..40).map(|_| front.connect()).collect();
    for client in &mut clients {
        client.send(ASKED);
    }
    for client in &mut clients {
        client.expect_head(101);
        // "hello" in a text frame with a mask of zero.
        client.send(b"\x81\x85\0\0\0\0hello");
        read_to(client, "hello!");
    }
}

#[test]
fn requests_wait_in_one_line_for_the_first_to_join_and_for_a_free_slot() {
    let front = front("queue = { max = 10, timeout = \"60s\" }");
    let mut early = front.connect();
    early.send(get("/early"));
    eventually(PATIENCE, "it waits for one to join", || {
        waiting(&front) == 1
    });
    let site = application();
    let _worker = join(&site, &front, &[]);
    assert!(early.expect_status(200).text().starts_with("GET /early"));
    // One process with one thread has one request at a time; the others wait here, not there.
    let mut inside = front.connect();
    inside.send(get("/gate/open"));
    eventually(PATIENCE, "it is inside", || site.seen().len() == 2);
    let mut next = front.connect();
    next.send(get("/next"));
    eventually(PATIENCE, "the next waits", || waiting(&front) == 1);
    assert_eq!(site.seen().len(), 2);
    let other = application();
    let _other = join(&other, &front, &[]);
    assert!(next.expect_status(200).text().starts_with("GET /next"));
    assert_eq!(
        other.seen(),
        ["GET /next 0"],
        "the one that has come has it"
    );
    site.write("open", "");
    inside.expect_status(200);
}

#[test]
fn one_that_is_killed_costs_what_it_had_and_nothing_else() {
    let front = front("");
    let site = application();
    let first = join(&site, &front, &[]);
    wait_up(&front, 1);
    let mut posted = front.connect();
    posted.send("POST /gate/open HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    eventually(PATIENCE, "it is inside", || site.seen().len() == 1);
    let other = application();
    let _other = join(&other, &front, &[]);
    wait_up(&front, 2);
    let load = ClientLoad::on(&front);
    load.go_on(50);
    kill(first.pid(), Signal::KILL);
    assert_eq!(posted.response().status, 502, "it must not be repeated");
    let _ = first.wait_exit(PATIENCE);
    wait_up(&front, 1);
    load.go_on(50);
    assert_eq!(load.end(), Vec::<String>::new(), "{}", front.log());
    assert!(
        front.log().contains("(joined) disconnected"),
        "{}",
        front.log()
    );
}

#[test]
fn one_that_stops_or_comes_costs_nothing() {
    let front = front("");
    let site = application();
    let first = join(&site, &front, &["--threads", "2"]);
    wait_up(&front, 1);
    let load = ClientLoad::on(&front);
    load.go_on(20);
    for _ in 0..3 {
        let other = join(&application(), &front, &["--threads", "2"]);
        wait_up(&front, 2);
        load.go_on(50);
        other.signal(Signal::TERM);
        assert_eq!(other.wait_exit(PATIENCE).code(), Some(0), "{}", other.log());
        wait_up(&front, 1);
        load.go_on(20);
    }
    // An upgraded server is followed by another, which joins before it leaves.
    let before = up(&front);
    first.signal(Signal::USR2);
    eventually(PATIENCE, "another serves", || {
        let now = up(&front);
        now.len() == 1 && now != before
    });
    load.go_on(50);
    assert_eq!(first.wait_exit(PATIENCE).code(), Some(0), "{}", first.log());
    load.go_on(20);
    assert_eq!(load.end(), Vec::<String>::new(), "{}", front.log());
    let (leaves, successor) = (format!("{} leaving", before[0]), up(&front)[0].clone());
    front.wait_log(&leaves);
    let (log, serves) = (front.log(), format!("{successor} joined"));
    assert!(
        log.find(&serves).unwrap() < log.find(&leaves).unwrap(),
        "{log}"
    );
    let successor = successor.split([':', ' ']).nth(1).unwrap().parse().unwrap();
    kill(successor, Signal::TERM);
    eventually(PATIENCE, "the successor ends", || !is_alive(successor));
}

#[test]
fn a_front_end_that_reloads_upgrades_or_comes_back_is_served_on() {
    let front = front("");
    let (one, two) = (application(), application());
    let _workers = [&one, &two].map(|site| join(site, &front, &["--threads", "2"]));
    wait_up(&front, 2);
    let load = ClientLoad::on(&front);
    load.go_on(20);
    // An upstream with other settings is a different one.
    let toml = front_toml("response_timeout = \"50s\"").replacen(
        "[server]\n",
        "[server]\nkeep_alive_drain = \"2s\"\n",
        1,
    );
    front.site().write("penstock.toml", toml);
    let admin = format!("127.0.0.1:{}", front.admin_port());
    let reloaded = front.site().run(&["reload", "--admin", &admin]);
    assert_eq!(reloaded.status.code(), Some(0), "{:?}", texts(&reloaded));
    front.wait_log("reload: upstream site replaced");
    wait_up(&front, 2);
    load.go_on(50);
    let upgraded = front.site().run(&["upgrade", "--admin", &admin]);
    assert_eq!(upgraded.status.code(), Some(0), "{:?}", texts(&upgraded));
    load.go_on(50);
    let successor = i32::try_from(front.admin_json()["pid"].as_i64().unwrap()).unwrap();
    assert_ne!(successor, front.pid());
    wait_up(&front, 2);
    load.go_on(50);
    assert_eq!(load.end(), Vec::<String>::new(), "{}", front.log());
    assert_eq!(front.wait_exit(PATIENCE).code(), Some(0));
    // Without an announcement, and then another in its place.
    kill(successor, Signal::KILL);
    let socket = front.site().dir().join("join.sock");
    eventually(PATIENCE, "it has let go of its sockets", || {
        std::os::unix::net::UnixStream::connect(&socket).is_err()
    });
    let again = front.site().serve(&[]);
    wait_up(&again, 2);
    assert_eq!(again.get("/again").status, 200);
}

#[test]
fn clients_that_are_too_many_keep_nobody_from_joining() {
    // One loop: each accepts one more than allowed, as the accept is pending already.
    let toml = front_toml("").replacen("[server]\n", "[server]\nthreads = 1\n", 1);
    let toml = format!("{toml}[limits]\nconnections = 1\n");
    let front = Site::new().config(&toml).serve(&[]);
    let mut client = front.connect();
    client.send(get("/early"));
    eventually(PATIENCE, "the only place is taken", || waiting(&front) == 1);
    let _worker = join(&application(), &front, &[]);
    assert!(client.expect_status(200).text().starts_with("GET /early"));
}

#[test]
fn a_stop_of_the_front_end_waits_for_what_is_in_progress_there() {
    let front = front("");
    let site = application();
    let worker = join(&site, &front, &[]);
    wait_up(&front, 1);
    let mut inside = front.connect();
    inside.send(get("/gate/open"));
    eventually(PATIENCE, "it is inside", || site.seen().len() == 1);
    front.signal(Signal::TERM);
    front.wait_log("stopping: ");
    site.write("open", "");
    assert_eq!(inside.expect_status(200).text(), "open");
    assert_eq!(front.wait_exit(PATIENCE).code(), Some(0), "{}", front.log());
    worker.wait_log("not a server of `site`");
}

#[test]
fn an_application_of_a_file_joins_by_tcp_with_the_key_of_the_file() {
    let front = Site::new()
        .config(&format!(
            "{}[limits]\nidle_timeout = \"300ms\"\n",
            front_toml("").replace("unix:join.sock", "127.0.0.1:0")
        ))
        .serve(&[]);
    let lines = front.announced();
    let port = lines.iter().find_map(|line| {
        let port = line.strip_prefix("listening tls://127.0.0.1:")?;
        port.parse::<u16>().ok()
    });
    let address = format!("localhost:{}", port.expect("it is announced"));
    let site = Site::with_app().config(&format!(
        "[server]\nlisten = [\"127.0.0.1:1\"]\njoin = {{ listen = \"127.0.0.1:2\", key = \"{KEY}\" }}\n\
         [limits]\nidle_timeout = \"200ms\"\n\
         [apps.other]\n[apps.shop]\nprocesses = 1\nthreads = 2\n\
         [[sites]]\nroutes = [{{ app = \"other\" }}]\n"
    ));
    let worker = site.work(&[
        "shop",
        "--join",
        &address,
        "--upstream",
        "site",
        "--admin",
        "127.0.0.1:0",
    ]);
    worker.wait_ready("shop");
    wait_up(&front, 1);
    eventually(PATIENCE, "it says so", || {
        worker.admin("GET", "/readyz").status == 200
    });
    assert_eq!(worker.admin_json()["front_end"]["is_joined"], true);
    assert_eq!(front.get("/a").status, 200);
    let servers = front.admin_json()["upstreams"][0]["servers"].clone();
    assert_eq!(servers[0]["max_active"], 2, "{servers}");
    // Longer than a client of either may wait: connections between them stay open.
    for _ in 0..2 {
        front.connect().expect_closed();
    }
    assert_eq!(front.get("/b").status, 200);
    let servers = front.admin_json()["upstreams"][0]["servers"].clone();
    assert_eq!(
        (&servers[0]["connects"], &servers[0]["failures"]),
        (&1.into(), &0.into()),
        "{servers}"
    );
}

#[test]
fn what_is_missing_is_said() {
    let site = Site::with_app();
    for (arguments, expected) in [
        (vec!["work", "--join", "front:7000"], "there is no key"),
        (
            vec!["work", "--join", "front", "--key-file", "key"],
            "--join cannot be",
        ),
        (vec!["work"], "--join"),
        (vec!["work", "nothing", "--join", "front:7000"], "nothing"),
    ] {
        let output = site.run(&arguments);
        let (_, stderr) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    // A joiner with another key keeps trying, and reports why.
    let front = front("");
    let stranger = Site::with_app().file("key", "Vx7Kq2Zt9LbW4mPc8RsYd1HgNf6JuEo3AiQlXvBzTkM=\n");
    let worker = join(&stranger, &front, &["--admin", "127.0.0.1:0"]);
    worker.wait_log("not a server of `site`: its key is another");
    front.wait_log("join: refused a Unix socket");
    assert_eq!(up(&front), Vec::<String>::new());
    let unready = worker.admin("GET", "/readyz");
    assert_eq!(unready.status, 503);
    assert!(
        unready.text().contains("its key is another"),
        "{}",
        unready.text()
    );
}
