//! The readiness probe: one GET, and whether the response is as the scenario expects.
//!
//! `supervised` repeats it until a deployment responds.
//!
//! # Invariants
//!
//! - An unexpected response is distinguished from no response yet.

use std::time::Duration;

use penstock_client::{ClientError, open_stream, read_body, read_head};
use penstock_http::ResponseHeadScanner;
use penstock_runtime::{clock, loops::block_on};

use crate::load::EncodedRequest;
use crate::scenario::ExpectedResponse;

/// More than any page that is compared as a whole; a longer body is truncated.
const MAX_BODY_BYTES: usize = 64 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadinessResult {
    /// It responds as expected.
    Ready,
    /// It does not respond yet; the cause.
    NotYet(String),
    /// It responds differently.
    Wrong(String),
}

/// Probes once, for `timeout` at most.
pub(super) fn check_readiness(
    request: &EncodedRequest,
    expect: &ExpectedResponse,
    timeout: Duration,
) -> ReadinessResult {
    let why = match block_on(clock::timeout(timeout, run_probe(request, expect))) {
        Ok(Some(Ok(result))) => return result,
        Ok(Some(Err(error))) => error.to_string(),
        Ok(None) => ClientError::Timeout(timeout).to_string(),
        Err(error) => error.to_string(),
    };
    ReadinessResult::NotYet(why)
}

/// # Errors
/// No response yet, also from a server that is starting, or that dies while responding.
async fn run_probe(
    request: &EncodedRequest,
    expect: &ExpectedResponse,
) -> Result<ReadinessResult, ClientError> {
    let stream = open_stream(&request.address, request.tls.as_ref()).await?;
    stream.write_all(&request.bytes).await?;
    let (mut received, mut body) = (Vec::new(), Vec::new());
    let head = match read_head(&stream, &mut received, ResponseHeadScanner::new()).await {
        Ok(head) => head,
        Err(error) if received.is_empty() => return Err(error),
        Err(_) => {
            let what = format!("no HTTP response: {}", excerpt(&received));
            return Ok(ReadinessResult::Wrong(what));
        }
    };
    match read_body(&stream, &mut received, &head, MAX_BODY_BYTES, &mut body).await {
        Ok(()) | Err(ClientError::BodyTooLarge(_)) => Ok(judge(head.status, &body, expect)),
        Err(error @ ClientError::Body(_)) => Ok(ReadinessResult::Wrong(error.to_string())),
        Err(error) => Err(error),
    }
}

fn judge(status: u16, body: &[u8], expect: &ExpectedResponse) -> ReadinessResult {
    if status != expect.status {
        let what = format!("status {status}: {}", excerpt(body));
        // An application may still be loading behind a front end that responds already.
        return match status {
            502 | 503 => ReadinessResult::NotYet(what),
            _ => ReadinessResult::Wrong(format!("{what} (expected status {})", expect.status)),
        };
    }
    let is_body = |text: &&String| body == text.as_bytes();
    let is_in = |text: &&String| memchr::memmem::find(body, text.as_bytes()).is_some();
    let missing = expect.body.as_ref().filter(|text| !is_body(text));
    let missing = missing.or_else(|| expect.contains.as_ref().filter(|text| !is_in(text)));
    match missing {
        None => ReadinessResult::Ready,
        Some(wanted) => ReadinessResult::Wrong(format!("{} (expected {wanted:?})", excerpt(body))),
    }
}

/// The beginning of a response, for a message.
fn excerpt(bytes: &[u8]) -> String {
    let begin = &bytes[..bytes.len().min(200)];
    format!("{:?}", String::from_utf8_lossy(begin))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::load::Address;

    /// The verdict about a server that sends `answer` and closes.
    fn verdict(answer: &str, expect: &ExpectedResponse) -> &'static str {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let request = EncodedRequest {
            address: Address::Tcp(listener.local_addr().unwrap()),
            tls: None,
            bytes: "GET / HTTP/1.1\r\n\r\n".into(),
            weight: 1,
            is_head: false,
        };
        let answer = answer.to_owned();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 100]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let result = check_readiness(&request, expect, Duration::from_secs(10));
        server.join().unwrap();
        match result {
            ReadinessResult::Ready => "ready",
            ReadinessResult::NotYet(_) => "not yet",
            ReadinessResult::Wrong(_) => "wrong",
        }
    }

    #[test]
    fn judges_answers() {
        let any = ExpectedResponse::default();
        let exact = ExpectedResponse {
            body: Some("Hello".to_owned()),
            ..ExpectedResponse::default()
        };
        let contains = ExpectedResponse {
            contains: Some("ell".to_owned()),
            ..ExpectedResponse::default()
        };
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nHe\r\n";
        for (name, answer, expect, expected) in [
            ("exact", "HTTP/1.1 200 OK\r\n\r\nHello", &exact, "ready"),
            ("longer", "HTTP/1.1 200 OK\r\n\r\nHello!", &exact, "wrong"),
            (
                "contains",
                "HTTP/1.0 200 OK\r\n\r\nHello!",
                &contains,
                "ready",
            ),
            ("any", "HTTP/1.1 200\r\n\r\n", &any, "ready"),
            ("502", "HTTP/1.1 502 Bad Gateway\r\n\r\n", &any, "not yet"),
            ("503", "HTTP/1.1 503 Busy\r\n\r\nHello", &exact, "not yet"),
            ("500", "HTTP/1.1 500 Error\r\n\r\nHello", &exact, "wrong"),
            ("garbage", "SSH-2.0\r\n\r\n", &any, "wrong"),
            ("half a head", "HTTP/1.1 200 OK\r\nA: b", &any, "wrong"),
            ("half a body", chunked, &any, "not yet"),
            ("bad chunk", &format!("{chunked}-1\r\n"), &any, "wrong"),
            ("nothing", "", &any, "not yet"),
        ] {
            assert_eq!(verdict(answer, expect), expected, "{name}");
        }
    }
}
