//! Codings of real files: precompressed and compressed on demand.

use penstock_config::ContentCoding;

use super::*;
use crate::compressor::tests::decode;

const TEXT: &str = "body { color: black; background: white }\n";

fn text_file() -> String {
    TEXT.repeat(100)
}

/// `Content-Encoding` and content.
fn sent(response: &Response) -> (String, Bytes) {
    let coding = response.fields.get("content-encoding").unwrap_or_default();
    let Body::Bytes(content) = &response.body else {
        panic!("{response:?}")
    };
    (String::from_utf8(coding.to_vec()).unwrap(), content.clone())
}

fn accept(codings: &'static str) -> [(&'static str, &'static str); 1] {
    [("Accept-Encoding", codings)]
}

/// The response in a coding, once it is compressed: on a busy machine that may take longer than
/// requests wait.
fn encoded(site: &Site, line: &str, codings: &'static str) -> Response {
    let deadline = clock::now() + Duration::from_secs(60);
    loop {
        let response = site.response(line, &accept(codings));
        if response.fields.contains("content-encoding") {
            return response;
        }
        assert!(clock::now() < deadline, "{line}: never made");
    }
}

#[test]
fn a_precompressed_file_is_sent_to_clients_that_accept_it() {
    let site = Site::with_reliable_stamps(|files| files.compress.clear());
    for (name, content) in [
        ("app.js", "as it is"),
        ("app.js.br", "brotli"),
        ("app.js.gz", "gzip"),
        ("plain.js", "alone"),
    ] {
        site.dir.write_file(name, content);
    }
    std::fs::create_dir(site.dir.root().join("plain.js.gz")).unwrap();
    site.dir.symlink("../secret", "plain.js.br");
    site.dir.write_file("../secret", "secret");
    let mut tags = std::collections::HashSet::new();
    for (path, codings, coding, content) in [
        ("/app.js", "gzip, deflate, br, zstd", "br", "brotli"),
        ("/app.js", "gzip", "gzip", "gzip"),
        ("/app.js", "zstd", "", "as it is"),
        ("/app.js", "br;q=0.1, gzip", "gzip", "gzip"),
        ("/app.js", "", "", "as it is"),
        ("/plain.js", "gzip, br", "", "alone"),
    ] {
        let response = site.response(&format!("GET {path}"), &accept(codings));
        assert_eq!(
            sent(&response),
            (coding.into(), content.into()),
            "{codings}"
        );
        let kind = response.fields.get("content-type");
        assert_eq!(kind, Some(b"text/javascript; charset=utf-8".as_slice()));
        let vary = (path == "/app.js").then_some(b"Accept-Encoding".as_slice());
        assert_eq!(response.fields.get("vary"), vary, "{codings}");
        let tag = response.fields.get("etag").unwrap().to_vec();
        tags.insert(tag.clone());
        // HEAD gets the same, and a conditional request gets 304.
        let headed = site.response(&format!("HEAD {path}"), &accept(codings));
        assert_eq!(headed.fields, response.fields);
        assert_eq!(headed.body.length(), response.body.length());
        let tag = String::from_utf8(tag).unwrap();
        let had = [("Accept-Encoding", codings), ("If-None-Match", &tag)];
        let had = site.response(&format!("GET {path}"), &had);
        assert_eq!(had.status, Status::NOT_MODIFIED);
        assert_eq!(had.fields.get("vary"), vary);
    }
    assert_eq!(tags.len(), 4, "one for each coding");
    let part = [("Accept-Encoding", "br"), ("Range", "bytes=0-2")];
    let part = site.response("GET /app.js", &part);
    assert_eq!(part.status, Status::PARTIAL_CONTENT);
    assert_eq!(sent(&part), ("br".into(), "bro".into()));
}

#[test]
fn a_stale_precompressed_file_is_not_used() {
    let mut site = Site::with_reliable_stamps(|files| files.compress.clear());
    let old = site.dir.write_file("a.css.gz", "old");
    let response = |site: &Site| sent(&site.response("GET /a.css", &accept("gzip")));
    site.dir.write_file("a.css", "new");
    assert_eq!(response(&site), ("gzip".into(), "old".into()));
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    old.set_modified(long_ago).unwrap();
    site.after(1001);
    assert_eq!(response(&site), (String::new(), "new".into()));
    std::fs::remove_file(site.dir.root().join("a.css.gz")).unwrap();
    site.after(1001);
    let response = site.response("GET /a.css", &accept("gzip"));
    assert!(!response.fields.contains("vary"), "nothing to choose from");
}

#[test]
fn compressible_files_are_compressed_once() {
    let site = Site::with_reliable_stamps(|files| files.precompressed.clear());
    site.dir.write_file("a.css", text_file());
    site.dir.write_file("large.css", TEXT.repeat(5000));
    site.dir.write_file("small.css", TEXT);
    site.dir.write_file("a.png", text_file());
    site.dir.write_file("huge.css", TEXT.repeat(30_000));
    for (path, original, codings, coding) in [
        (
            "/a.css",
            text_file(),
            "gzip, deflate, br, zstd",
            Some(ContentCoding::Zstd),
        ),
        (
            "/a.css",
            text_file(),
            "br, gzip",
            Some(ContentCoding::Brotli),
        ),
        ("/a.css", text_file(), "gzip", Some(ContentCoding::Gzip)),
        (
            "/large.css",
            TEXT.repeat(5000),
            "gzip",
            Some(ContentCoding::Gzip),
        ),
        ("/a.css", text_file(), "", None),
        ("/small.css", TEXT.into(), "gzip", None),
        ("/a.png", text_file(), "gzip", None),
    ] {
        let line = format!("GET {path}");
        let response = match coding {
            Some(_) => encoded(&site, &line, codings),
            None => site.response(&line, &accept(codings)),
        };
        let varies = !matches!(path, "/small.css" | "/a.png");
        assert_eq!(response.fields.contains("vary"), varies, "{path}");
        let Some(coding) = coding else {
            continue;
        };
        let (name, content) = sent(&response);
        assert_eq!(name, coding.as_str());
        assert_eq!(decode(coding, &content), original.as_bytes());
        assert_eq!(
            site.ask_with(&line, &accept(codings)).0,
            ResponseTime::Immediate
        );
        assert!(!response.fields.contains("accept-ranges"), "{path}");
        let headed = site.response(&format!("HEAD {path}"), &accept(codings));
        assert_eq!(headed.fields, response.fields);
        assert_eq!(headed.body.length(), Some(content.len() as u64));
        // A range is taken from the original.
        let part = [("Accept-Encoding", codings), ("Range", "bytes=0-9")];
        let part = site.response(&line, &part);
        assert_eq!(part.status, Status::PARTIAL_CONTENT);
        assert!(!part.fields.contains("content-encoding"));
        assert!(part.fields.contains("vary"));
    }
    let huge = site.response("GET /huge.css", &accept("gzip"));
    assert!(matches!(huge.body, Body::File(_)), "too large");
}

#[test]
fn compressed_files_are_sent_inline() {
    let site = Site::with_reliable_stamps(|_| {});
    site.dir.write_file("a.css", text_file());
    let lent = |codings: &'static str| {
        let head = head("GET /a.css", &accept(codings));
        let asked = RequestView {
            head: &head,
            path: b"/a.css",
            scheme: "http",
            arrived_at: site.now,
        };
        let mut lent = None;
        site.files.try_inline(&asked, &mut |answer| {
            let coding = answer.fields.get("content-encoding").unwrap_or_default();
            lent = Some((coding.to_vec(), answer.body.length()));
        });
        lent
    };
    assert_eq!(lent(""), None);
    encoded(&site, "GET /a.css", "br");
    assert_eq!(lent("").map(|(_, len)| len), Some(text_file().len() as u64));
    assert_eq!(lent("br").map(|(coding, _)| coding), Some(b"br".to_vec()));
    assert_eq!(lent("gzip"), None, "not made yet");
}

#[test]
fn a_new_version_is_compressed_anew() {
    let mut site = Site::with_reliable_stamps(|_| {});
    let get = |site: &Site| {
        let response = encoded(site, "GET /a.css", "gzip");
        decode(ContentCoding::Gzip, &sent(&response).1)
    };
    for version in ["one ", "two "] {
        site.dir.write_file("a.css", version.repeat(1000));
        site.after(1001);
        assert_eq!(get(&site), version.repeat(1000).as_bytes());
    }
}

#[test]
fn only_the_sent_coding_is_checked() {
    let mut site = Site::with_reliable_stamps(|files| files.compress.clear());
    if !site.tree().looks_up_on_loops() {
        return eprintln!("skipped: the temporary folder is on no local file system");
    }
    site.dir.write_file("a.css", vec![b'a'; 100_000]);
    let beside = site.dir.write_file("a.css.gz", vec![b'g'; 90_000]);
    let get = |codings| site.ask_with("GET /a.css", &accept(codings));
    let size = |(_, reply): (ResponseTime, Result<Reply, Fault>)| match reply {
        Ok(Reply::Response(response)) => response.body.length(),
        other => panic!("{other:?}"),
    };
    assert_eq!(size(get("gzip")), Some(90_000));
    beside.set_len(80_000).unwrap();
    let plain = get("");
    assert_eq!(
        plain.0,
        ResponseTime::Immediate,
        "the other coding is no concern"
    );
    assert_eq!(size(plain), Some(100_000));
    assert_eq!(size(get("gzip")), Some(80_000));
}

#[test]
fn one_beside_that_has_whole_seconds_is_compared_by_those() {
    let mut site = Site::with_reliable_stamps(|files| files.compress.clear());
    let at = |millis| {
        let since = crate::test_support::FILE_MODIFIED_TIME + Duration::from_millis(millis);
        std::time::SystemTime::UNIX_EPOCH + since
    };
    let original = site.dir.write_file("a.css", "new");
    original.set_modified(at(500)).unwrap();
    let beside = site.dir.write_file("a.css.gz", "gzip");
    for (millis, coding) in [(0, "gzip"), (200, ""), (500, "gzip"), (999, "gzip")] {
        beside.set_modified(at(millis)).unwrap();
        site.after(1001);
        let response = site.response("GET /a.css", &accept("gzip"));
        assert_eq!(sent(&response).0, coding, "{millis}");
    }
    original.set_modified(at(1500)).unwrap();
    beside.set_modified(at(0)).unwrap();
    site.after(1001);
    let response = site.response("GET /a.css", &accept("gzip"));
    assert_eq!(sent(&response).0, "", "a second older");
}
