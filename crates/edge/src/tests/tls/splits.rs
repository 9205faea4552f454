//! The same requests with and without TLS, through a proxy that cuts bytes anywhere: the same
//! responses.
//!
//! `PENSTOCK_SEED=n` replays one seed, `PENSTOCK_SEEDS=n` runs n seeds.

use std::net::{Shutdown, SocketAddr, TcpListener};

use super::*;

/// Forwards one connection to `server`, both ways, in pieces of random sizes.
fn splitting_proxy(server: SocketAddr, seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let up = std::thread::spawn(move || forward(client, server, seed));
        forward(back.0, back.1, !seed);
        up.join().unwrap();
    });
    address
}

/// Copies to the end; an end goes on as one.
fn forward(mut from: TcpStream, mut to: TcpStream, seed: u64) {
    to.set_nodelay(true).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffer = vec![0; 1 << 16];
    loop {
        // Mostly small reads, so that pieces of both sides' writes are joined and cut.
        let most = 1 << random.u32(0..17);
        let Ok(count @ 1..) = from.read(&mut buffer[..most]) else {
            break;
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let len = random.usize(1..=rest.len());
            if to.write_all(&rest[..len]).is_err() {
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
            rest = &rest[len..];
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Requests of every kind in one string; the last one ends the connection.
fn requests(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for _ in 0..random.usize(1..6) {
        let most = 1 << random.u32(1..18);
        let len = random.usize(..most);
        match random.u32(0..4) {
            0 => all.extend(get(&format!("/bytes/{len}")).into_bytes()),
            1 => all.extend(get(&format!("/file/{len}")).into_bytes()),
            2 => {
                let head = format!("POST /x HTTP/1.1\r\nHost: h.test\r\nContent-Length: {len}");
                all.extend_from_slice(format!("{head}\r\n\r\n").as_bytes());
                all.extend(expected(len));
            }
            _ => {
                let head = "POST /x HTTP/1.1\r\nHost: h.test\r\nTransfer-Encoding: chunked";
                all.extend_from_slice(format!("{head}\r\n\r\n").as_bytes());
                for chunk in expected(len).chunks(random.usize(1..20_000)) {
                    all.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    all.extend_from_slice(chunk);
                    all.extend_from_slice(b"\r\n");
                }
                all.extend_from_slice(b"0\r\n\r\n");
            }
        }
    }
    let last = "GET /bytes/1 HTTP/1.1\r\nHost: h.test\r\nConnection: close\r\n\r\n";
    all.extend_from_slice(last.as_bytes());
    all
}

/// The responses without their dates.
fn without_dates(mut responses: &[u8]) -> Vec<u8> {
    let (mut rest, date) = (Vec::new(), b"\r\nDate: ");
    while let Some(at) = responses.windows(date.len()).position(|it| it == date) {
        rest.extend_from_slice(&responses[..at]);
        responses = &responses[at + date.len() + 29..];
    }
    [&rest[..], responses].concat()
}

/// Writes everything from a thread of its own while the responses are read.
fn exchange(plain: &TestEdge, requests: &[u8], seed: u64) -> Vec<u8> {
    let mut client = TcpStream::connect(splitting_proxy(plain.address, seed)).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let (mut writing, requests) = (client.try_clone().unwrap(), requests.to_vec());
    let writer = std::thread::spawn(move || writing.write_all(&requests).unwrap());
    let mut responses = Vec::new();
    client.read_to_end(&mut responses).unwrap();
    writer.join().unwrap();
    without_dates(&responses)
}

/// As [`exchange`], over TLS: one thread, which writes what the socket takes.
fn exchange_over_tls(edge: &TlsEdge, requests: &[u8], seed: u64) -> Vec<u8> {
    let mut client = edge.connect();
    let socket = TcpStream::connect(splitting_proxy(edge.house.address, seed)).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    client.sock = socket;
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut rest, mut responses) = (requests, Vec::new());
    client.conn.complete_io(&mut client.sock).unwrap();
    client.sock.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        assert!(Instant::now() < deadline, "seed {seed}");
        if !client.conn.wants_write() && !rest.is_empty() {
            let len = random.usize(1..=rest.len().min(30_000));
            client.conn.writer().write_all(&rest[..len]).unwrap();
            rest = &rest[len..];
        }
        let _ = client.conn.write_tls(&mut client.sock);
        match client.conn.read_tls(&mut client.sock) {
            Ok(_) => drop(client.conn.process_new_packets().unwrap()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        match client.conn.reader().read_to_end(&mut responses) {
            // The end was announced.
            Ok(_) => return without_dates(&responses),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "seed {seed}"),
        }
    }
}

#[test]
fn tls_changes_no_byte_however_bytes_are_cut() {
    let (plain, tls) = (TestEdge::new(sizes()), TlsEdge::new(sizes(), |_| {}));
    let number = |name| Some(std::env::var(name).ok()?.parse::<u64>().expect(name));
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(25),
    };
    for seed in seeds {
        let requests = requests(seed);
        let responses = exchange(&plain, &requests, seed);
        assert!(responses.starts_with(b"HTTP/1.1 200 OK"), "seed {seed}");
        let over_tls = exchange_over_tls(&tls, &requests, seed);
        assert!(responses == over_tls, "replay with PENSTOCK_SEED={seed}");
    }
}
