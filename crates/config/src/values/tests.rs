//! The grammars of addresses, hosts and paths, row by row.

use super::*;

#[test]
fn reads_listen_addresses() {
    let rows = [
        ("127.0.0.1:8080", Some("http://127.0.0.1:8080")),
        (":8080", Some("http://*:8080")),
        ("8080", Some("http://*:8080")),
        ("0.0.0.0:8080", Some("http://0.0.0.0:8080")),
        ("localhost:80", Some("http://127.0.0.1:80")),
        ("[::1]:80", Some("http://[::1]:80")),
        ("unix:/run/x.sock", Some("unix:/run/x.sock")),
        (":0", Some("http://*:0")),
        ("", None),
        (":", None),
        ("unix:", None),
        ("+80", None),
        (":65536", None),
        ("127.0.0.1", None),
        ("::1:80", None),
        ("example.com:80", None),
        ("http://127.0.0.1:80", None),
        ("unix:/a\0b", None),
    ];
    for (text, expected) in rows {
        let shown = text.parse::<ListenAddr>().ok().map(|addr| addr.to_string());
        assert_eq!(shown.as_deref(), expected, "{text:?}");
    }
}

#[test]
fn sees_which_addresses_overlap() {
    let rows = [
        (":80", ":80", true),
        (":80", "127.0.0.1:80", true),
        ("127.0.0.1:80", "127.0.0.2:80", false),
        ("[::]:80", "[::1]:80", true),
        ("[::]:80", "0.0.0.0:80", false),
        ("[::]:80", ":80", true),
        ("0.0.0.0:80", ":80", true),
        ("[::1]:80", ":80", true),
        ("[::1]:81", ":80", false),
        (":80", ":81", false),
        (":0", ":0", false),
        ("unix:/a", "unix:/a", true),
        ("unix:/a", "unix:/b", false),
        ("unix:/a", ":80", false),
    ];
    for (a, b, expected) in rows {
        let (left, right): (ListenAddr, ListenAddr) = (a.parse().unwrap(), b.parse().unwrap());
        assert_eq!(left.overlaps(&right), expected, "{a} {b}");
        assert_eq!(right.overlaps(&left), expected, "{b} {a}");
    }
}

#[test]
fn matches_hosts() {
    let rows = [
        ("example.com", "example.com", true),
        ("Example.com", "EXAMPLE.COM", true),
        ("example.com", "example.com.", true),
        ("example.com", "www.example.com", false),
        ("*.example.com", "www.example.com", true),
        ("*.example.com", "a.b.example.com", true),
        ("*.example.com", "example.com", false),
        ("*.example.com", ".example.com", false),
        ("*.example.com", "badexample.com", false),
        ("*.example.com", "", false),
        ("[::1]", "[::1]", true),
    ];
    for (pattern, host, expected) in rows {
        let read = HostPattern::parse(pattern).unwrap();
        assert_eq!(read.matches(host), expected, "{pattern} {host}");
    }
}

#[test]
fn refuses_what_is_no_host() {
    for text in [
        "", "*", "*.", "a..b", "a b", "a:80", "http://a", "a/b", "*a.b", "a.*.b", "ü.de", "[::",
        "[x]",
    ] {
        assert_eq!(HostPattern::parse(text), None, "{text:?}");
    }
}

#[test]
fn matches_paths() {
    let rows = [
        ("/*", "/", true),
        ("/*", "/a/b", true),
        ("/assets/*", "/assets/a.css", true),
        ("/assets/*", "/assets/", true),
        ("/assets/*", "/assets", false),
        ("/assets/*", "/assetsx", false),
        ("/about", "/about", true),
        ("/about", "/about/", false),
        ("/", "/", true),
        ("/", "/a", false),
        ("*.php", "/a/b.php", true),
        ("*.php", "/a/b.php5", false),
        ("*.tar.gz", "/a.tar.gz", true),
        ("*.tar.gz", "/a.gz", false),
    ];
    for (pattern, path, expected) in rows {
        let read = PathPattern::parse(pattern).unwrap();
        assert_eq!(read.to_string(), pattern);
        assert_eq!(read.matches(path.as_bytes()), expected, "{pattern} {path}");
    }
}

#[test]
fn refuses_what_no_path_could_equal() {
    for text in [
        "", "x", "*", "*.", "*php", "*./a", "*.a*", "/a*", "/*/b", "/a/../b", "//a", "/a//*",
        "/a?b", "/a#b", "/./a",
    ] {
        assert_eq!(PathPattern::parse(text), None, "{text:?}");
    }
}

#[test]
fn sees_which_path_covers_which() {
    let rows = [
        ("/*", "/x", true),
        ("/*", "/x/*", true),
        ("/x/*", "/x/y/*", true),
        ("/x/*", "/x", false),
        ("/x/*", "/*", false),
        ("/x", "/x", true),
        ("/x", "/x/*", false),
        ("/*", "*.php", true),
        ("/x/*", "*.php", false),
        ("*.php", "/x.php", true),
        ("*.php", "*.x.php", true),
        ("*.x.php", "*.php", false),
        ("*.php", "/*", false),
    ];
    for (wide, narrow, expected) in rows {
        let (a, b) = (
            PathPattern::parse(wide).unwrap(),
            PathPattern::parse(narrow).unwrap(),
        );
        assert_eq!(a.covers(&b), expected, "{wide} {narrow}");
    }
}

#[test]
fn a_regular_expression_matches_in_linear_time_or_is_refused() {
    let regex = |text: &str| PathRegex::new(text).map(PathPattern::Regex);
    let pattern = regex("^/p/([0-9]+)$").unwrap();
    for (path, expected) in [("/p/1", true), ("/p/", false), ("/a/p/1", false)] {
        assert_eq!(pattern.matches(path.as_bytes()), expected, "{path}");
    }
    assert!(pattern.covers(&PathPattern::Exact("/p/1".into())));
    assert!(
        pattern.covers(&regex("^/p/([0-9]+)$").unwrap()) && !pattern.covers(&PathPattern::any())
    );
    // Backtracking engines take exponential time for it.
    let costly = regex("^/(a|a|aa)+$").unwrap();
    assert!(!costly.matches(format!("/{}b", "a".repeat(20_000)).as_bytes()));
    for (text, cause) in [
        ("(", "unclosed group"),
        ("(a{1000}){1000}", "too large"),
        ("a(?=b)", "look-around"),
        ("(a)\\1", "backreference"),
    ] {
        let problem = PathRegex::new(text).unwrap_err();
        assert!(
            problem.contains(cause) && !problem.contains('\n'),
            "{text}: {problem}"
        );
    }
}

#[test]
fn a_value_is_a_text_a_pattern_or_a_regular_expression() {
    for (pattern, value, expected) in [
        ("1", "1", true),
        ("1", "12", false),
        ("*", "", true),
        ("", "", true),
        ("", "a", false),
        ("a*", "abc", true),
        ("a*", "ba", false),
        ("*.example", "x.example", true),
        ("*.example", "xexample", false),
        ("a*c*e", "abcde", true),
        ("a*c*e", "abcd", false),
        ("~^[0-9]+$", "12", true),
        ("~^[0-9]+$", "1a", false),
        ("~mobile", "Mobile", false),
        ("~*mobile", "a Mobile b", true),
    ] {
        let read = ValuePattern::parse(pattern).unwrap();
        assert_eq!(read.to_string(), pattern);
        assert_eq!(
            read.matches(value.as_bytes()),
            expected,
            "{pattern} {value}"
        );
    }
    assert!(ValuePattern::parse("a*").unwrap().matches(b"a\xff\n"));
    assert!(ValuePattern::parse("~(").is_err());
}

#[test]
fn finds_words_in_braces_that_stand_for_nothing() {
    let rows = [
        ("{client}", None),
        ("{scheme}://{hostname}{uri}", None),
        (
            "{path.1}{query.a-b}{header.X-A}{cookie.sid}{re.1}{re.name}",
            None,
        ),
        ("{clinet}", Some("{clinet}")),
        ("{host} {x_y}", Some("{x_y}")),
        ("{path.0}", Some("{path.0}")),
        ("{path.x}", Some("{path.x}")),
        ("{host.x}", Some("{host.x}")),
        ("{\"group\":\"a\"}", None),
        ("{}", None),
        ("{", None),
        ("{open", None),
        ("{ä}", None),
        ("{{host}}", None),
        ("{header.}", None),
        ("", None),
    ];
    for (text, expected) in rows {
        let read = Template::parse(text);
        assert_eq!(read.as_ref().err().map(|it| &*it.0), expected, "{text}");
        if let Ok(template) = read {
            let again: String = template.parts().iter().map(part_text).collect();
            let is_text = |part: &TemplatePart| matches!(part, TemplatePart::Text(_));
            assert!(
                template
                    .parts()
                    .windows(2)
                    .all(|two| !two.iter().all(is_text))
            );
            let plain = template.parts().iter().all(is_text);
            assert_eq!(plain, again == text, "{text}");
        }
    }
}

fn part_text(part: &TemplatePart) -> &str {
    match part {
        TemplatePart::Text(text) => text,
        TemplatePart::Placeholder(_) => "\u{1}",
    }
}

#[test]
fn expands_the_places_to_try() {
    let rows = [
        ("{path}", "/a/b", "/a/b"),
        ("{path}/index.html", "/a", "/a/index.html"),
        ("{path}/index.html", "/a/", "/a/index.html"),
        ("{path}/index.html", "/", "/index.html"),
        ("{path}.html", "/a", "/a.html"),
        ("/en/{path}", "/a", "/en/a"),
        ("en{path}", "/a", "/en/a"),
        ("index.html", "/a", "/index.html"),
        ("/index.html", "/a", "/index.html"),
    ];
    for (pattern, path, expected) in rows {
        let mut out = String::new();
        TryPattern::parse(pattern)
            .unwrap()
            .expand_into(path, &mut out);
        assert_eq!(out, expected, "{pattern} {path}");
    }
}

#[test]
fn refuses_places_outside_the_root() {
    for text in [
        "",
        "../{path}",
        "{path}/../x",
        "{path}{path}",
        "{other}",
        "{path}{x}",
        "/",
        "a\0",
    ] {
        assert_eq!(TryPattern::parse(text), None, "{text:?}");
    }
}
