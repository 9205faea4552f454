//! Ranges of stored bodies: from memory and from disk, without another request to the origin.

use super::{
    CacheSetup, IN_MEMORY, ON_DISK, ask, content, get, is_hit, of_content, verb, wait_hit,
    wait_objects,
};
use crate::support::{PATIENCE, Site, eventually};

#[test]
fn ranges_of_a_stored_body_are_those_of_the_body() {
    for (cache, length) in [(IN_MEMORY, 10_000), (ON_DISK, 3_000_000)] {
        let origin = of_content();
        let server = CacheSetup::new(&origin, cache).serve();
        let target = format!("/a?{length}");
        let whole = content(&target, length);
        assert!(get(&server, &target).body == whole);
        wait_hit(&server, &target);
        for (range, from, to) in [
            ("0-0", 0, 1),
            ("100-299", 100, 300),
            ("5000-", 5000, length),
            ("-7", length - 7, length),
            ("9000-99999999", 9000, length),
        ] {
            let field = format!("Range: bytes={range}\r\n");
            let part = ask(&server, &format!("GET {target}"), &field);
            assert_eq!(part.status, 206, "{range}: {part:?}");
            let expected = format!("bytes {from}-{}/{length}", to - 1);
            assert_eq!(part.header("content-range"), Some(expected.as_str()));
            assert!(part.body == whole[from..to], "{range}");
        }
        let beyond = ask(
            &server,
            &format!("GET {target}"),
            &format!("Range: bytes={length}-\r\n"),
        );
        let expected = format!("bytes */{length}");
        assert_eq!(beyond.status, 416);
        assert_eq!(beyond.header("content-range"), Some(expected.as_str()));
        for (tag, status) in [("\"v\"", 206), ("\"w\"", 200)] {
            let fields = format!("Range: bytes=1-2\r\nIf-Range: {tag}\r\n");
            let response = ask(&server, &format!("GET {target}"), &fields);
            assert_eq!(response.status, status, "If-Range: {tag}");
        }
        assert_eq!(origin.lines().len(), 1, "{:?}", origin.lines());
    }
}

#[test]
fn several_ranges_of_a_stored_body_are_parts_of_one_answer() {
    let origin = of_content();
    let server = CacheSetup::new(&origin, IN_MEMORY).serve();
    let whole = content("/a?10000", 10_000);
    get(&server, "/a?10000");
    wait_hit(&server, "/a?10000");
    // A hit may be on a body that is still being stored: several ranges need a complete one.
    let response = eventually(PATIENCE, "parts of a whole body", || {
        let response = ask(&server, "GET /a?10000", "Range: bytes=0-9,5000-5009\r\n");
        assert!(matches!(response.status, 200 | 206), "{response:?}");
        (response.status == 206).then_some(response)
    });
    let kind = response.header("content-type").unwrap();
    assert!(
        kind.starts_with("multipart/byteranges; boundary="),
        "{kind}"
    );
    for part in [&whole[..10], &whole[5000..5010]] {
        assert!(crate::support::find(&response.body, part).is_some());
    }
    assert_eq!(origin.lines().len(), 1);
}

#[test]
fn a_range_of_what_is_not_stored_is_right_too() {
    let origin = of_content();
    let server = CacheSetup::new(&origin, ON_DISK).serve();
    let whole = content("/a?300000", 300_000);
    let part = ask(&server, "GET /a?300000", "Range: bytes=1000-1999\r\n");
    match part.status {
        206 => assert!(part.body == whole[1000..2000]),
        200 => assert!(part.body == whole),
        other => panic!("{other}"),
    }
    assert!(get(&server, "/a?300000").body == whole);
}

/// The origin is a file server, this program: it has strong entity tags and serves ranges.
#[test]
fn a_part_far_into_a_film_is_kept_in_slices() {
    let film = content("film", (10 << 20) + 77);
    let studio = Site::new().file("public/film.mp4", &film).config(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"off\"\n\
         [[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\n",
    );
    let files = studio.clone().serve(&[]);
    for cache in [IN_MEMORY, ON_DISK] {
        let mut front = CacheSetup::new(&of_content(), cache).route("default_ttl = \"1h\"");
        front.proxy.servers = vec![format!("\"127.0.0.1:{}\"", files.port())];
        let server = front.serve();
        let part = |from: usize, to: usize| {
            let field = format!("Range: bytes={from}-{}\r\n", to - 1);
            let part = ask(&server, "GET /film.mp4", &field);
            assert_eq!(part.status, 206, "{part:?}");
            let expected = format!("bytes {from}-{}/{}", to - 1, film.len());
            assert_eq!(part.header("content-range"), Some(expected.as_str()));
            assert!(part.body == film[from..to], "{from}-{to}");
            part
        };
        let far = 9 << 20;
        let first = part(far - 1000, far + 5000);
        assert!(
            first.header("cache-status").unwrap().contains("stored"),
            "{first:?}"
        );
        // Index and two slices.
        wait_objects(&server, 3);
        assert!(is_hit(&part(far - 70_000, far + 70_000)));
        assert!(is_hit(&part(far + 500_000, far + 500_001)));
        let end = part(far, film.len());
        assert!(is_hit(&end), "{end:?}");
        wait_objects(&server, 4);
        assert!(is_hit(&part(film.len() - 7, film.len())));
        let (code, out, error) = verb(&server, &["purge", "/film.mp4"]);
        assert_eq!(code, 0, "{out}{error}");
        wait_objects(&server, 0);
        assert!(!is_hit(&part(far, far + 1)));
    }
}
