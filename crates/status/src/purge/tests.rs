//! Every form of a purge, and the bodies that are refused.

use super::*;

fn asked(what: PurgeTarget) -> PurgeRequest {
    PurgeRequest {
        target: what,
        cache: None,
    }
}

#[test]
fn reads_each_kind() {
    let url = || "https://example.com/news?page=2".to_owned();
    for (text, what) in [
        (
            r#"{"url": "https://example.com/news?page=2"}"#,
            PurgeTarget::Url(url()),
        ),
        (r#"{"url": "/news"}"#, PurgeTarget::Url("/news".into())),
        (
            "\r\n {\"prefix\": \"/img/\"}\n",
            PurgeTarget::Prefix("/img/".into()),
        ),
        (
            r#"{"tag": "product 7"}"#,
            PurgeTarget::Tag("product 7".into()),
        ),
        (r#"{"all": true}"#, PurgeTarget::All),
        (r#"{"all": true, "cache": null}"#, PurgeTarget::All),
    ] {
        assert_eq!(parse_purge(text.as_bytes()).unwrap(), asked(what), "{text}");
    }
    let of_one = parse_purge(br#"{"cache": "disk1", "all": true}"#).unwrap();
    assert_eq!(of_one.cache.as_deref(), Some("disk1"));
}

#[test]
fn refuses_whatever_could_take_out_more_than_was_meant() {
    for (text, begins) in [
        ("", "not an object"),
        ("[null, null, null, true]", "not an object"),
        ("{", "EOF"),
        ("{}", "0 of url, prefix, tag and all"),
        (r#"{"cache": "disk1"}"#, "0 of url"),
        (r#"{"url": "/a", "tag": "b"}"#, "2 of url"),
        (r#"{"url": "/a", "all": false}"#, "2 of url"),
        (r#"{"all": false}"#, "all is false"),
        (r#"{"all": "yes"}"#, "invalid type"),
        (r#"{"prefix": ""}"#, "prefix is empty"),
        (r#"{"prefix": " "}"#, "prefix is empty"),
        (r#"{"tag": ""}"#, "tag is empty"),
        (r#"{"all": true, "cache": ""}"#, "cache is empty"),
        (r#"{"prefix": "img/"}"#, "\"img/\" is no prefix"),
        (r#"{"url": "example.com/"}"#, "\"example.com/\" is no url"),
        (r#"{"urls": ["/a"]}"#, "unknown field"),
        (r#"{"url": "/a", "url": "/b"}"#, "duplicate field"),
    ] {
        let error = parse_purge(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(begins), "{text}: {error}");
        assert!(error.contains("expected"), "{text}: {error}");
    }
}
