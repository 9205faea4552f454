//! Exchanges with scripted servers on loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use penstock_runtime::loops::block_on;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Starts a server that runs `serve` with each connection; returns its address and the number of
/// connections.
fn start(serve: impl Fn(TcpStream) + Send + 'static) -> (Address, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            serve(stream.unwrap());
        }
    });
    (address, count)
}

fn read_request(stream: &mut TcpStream) {
    let mut request = [0; REQUEST.len()];
    stream.read_exact(&mut request).unwrap();
    assert_eq!(request, REQUEST);
}

/// The outcome of one exchange with a server that sends `answer` byte by byte and closes.
fn outcome(answer: &str) -> Result<(u16, String), String> {
    let answer = answer.to_owned();
    let (address, _) = start(move |mut stream| {
        stream.set_nodelay(true).unwrap();
        read_request(&mut stream);
        for byte in answer.bytes() {
            // The client may have closed behind an error.
            let _ = stream.write_all(&[byte]);
        }
    });
    let mut client = Client::new(address);
    let response = block_on(client.exchange(REQUEST, TIMEOUT, 8)).unwrap();
    let response = response.map_err(|error| error.to_string())?;
    Ok((response.status, String::from_utf8(response.body).unwrap()))
}

#[test]
fn a_response_is_complete_by_its_own_framing() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (name, answer, expected) in [
        (
            "length",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            Ok((200, "hello")),
        ),
        (
            "chunked",
            &format!("{chunked}2;x\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
            Ok((200, "hello")),
        ),
        (
            "until close",
            "HTTP/1.0 404 No\r\n\r\nhello",
            Ok((404, "hello")),
        ),
        ("none", "HTTP/1.1 204 No\r\n\r\n", Ok((204, ""))),
        (
            "behind an interim one",
            "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
            Ok((204, "")),
        ),
        ("nothing", "", Err("closed without a response")),
        (
            "half a head",
            "HTTP/1.1 200 OK\r\nContent-",
            Err("closed without a response"),
        ),
        (
            "half a body",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            Err("closed within the response"),
        ),
        (
            "half a chunk",
            &format!("{chunked}5\r\nhel"),
            Err("closed within the response"),
        ),
        (
            "garbage",
            "SSH-2.0\r\n",
            Err("malformed response: not an http/1 response"),
        ),
        (
            "bad chunk",
            &format!("{chunked}-1\r\n"),
            Err("malformed response: malformed chunk size"),
        ),
        (
            "interim responses for ever",
            &"HTTP/1.1 100 C\r\n\r\n".repeat(20),
            Err("more interim responses than 16"),
        ),
    ] {
        let expected = expected.map(|(status, body)| (status, body.to_owned()));
        assert_eq!(outcome(answer), expected.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn a_body_has_a_bound() {
    let large = Err("response body above 8 bytes".to_owned());
    for framing in ["Content-Length: 9", "Connection: close"] {
        let head = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
        assert_eq!(outcome(&format!("{head}123456789")), large, "{framing}");
    }
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789";
    assert_eq!(outcome(chunked), large);
    let exact = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678";
    assert_eq!(outcome(exact), Ok((200, "12345678".to_owned())));
}

#[test]
fn a_silent_server_ends_an_exchange_at_its_deadline() {
    let (address, _) = start(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nh");
        let _ = stream.read(&mut [0; 100]);
        let _ = stream.read(&mut [0; 100]);
    });
    let timeout = Duration::from_millis(50);
    let mut client = Client::new(address);
    let error = block_on(client.exchange(REQUEST, timeout, 8)).unwrap();
    assert_eq!(error.unwrap_err().to_string(), "no response within 50ms");
}

#[test]
fn an_unsent_request_is_told_from_an_interrupted_one() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    for address in [
        Address::Tcp(free.unwrap()),
        Address::Unix("/nonexistent/a.sock".into()),
    ] {
        let mut client = Client::new(address);
        let error = block_on(client.exchange(REQUEST, TIMEOUT, 8)).unwrap();
        assert!(matches!(error, Err(ClientError::Connect(_))), "{error:?}");
    }
}

#[test]
fn a_connection_is_kept_until_the_server_closes_it() {
    let (close, closed) = mpsc::channel::<()>();
    let (done, wait) = mpsc::channel::<()>();
    let (address, count) = start(move |mut stream| {
        for connection in ["keep-alive", "keep-alive"] {
            read_request(&mut stream);
            let head = format!("HTTP/1.1 200 OK\r\nConnection: {connection}\r\n");
            let answer = format!("{head}Content-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
        closed.recv().unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
        done.send(()).unwrap();
    });
    let exchanges = async {
        let mut client = Client::new(address);
        for (name, connections) in [("first", 1), ("kept", 1), ("anew", 2), ("kept", 2)] {
            if name == "anew" {
                close.send(()).unwrap();
                wait.recv().unwrap();
            }
            let response = client.exchange(REQUEST, TIMEOUT, 8).await.unwrap();
            assert_eq!(response.status, 200, "{name}");
            assert_eq!(count.load(Ordering::SeqCst), connections, "{name}");
        }
        close.send(()).unwrap();
    };
    block_on(exchanges).unwrap();
}
