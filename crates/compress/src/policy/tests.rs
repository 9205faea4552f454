//! The decision as a table.

use Decision::{Compress, Unchanged};

use super::*;
use crate::testing::{fields, request};

const IDENTITY: Decision = Decision::Identity(IdentityCause::Negotiation);

fn policy() -> Policy {
    Policy::new(&Compression::default(), true)
}

fn settings(coding: ContentCoding) -> EncoderSettings {
    let mut all = policy().settings.into_iter();
    all.find(|it| it.coding == coding).unwrap()
}

fn decide_for(
    policy: &Policy,
    asked: &[(&str, &str)],
    status: u16,
    sent: &[(&str, &str)],
    length: Option<u64>,
) -> Decision {
    let meta_fields = fields(sent);
    policy.decide(
        &request("GET", asked),
        ResponseMeta {
            status: Status::new(status).unwrap(),
            fields: &meta_fields,
            length,
        },
    )
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
const GZIP: (&str, &str) = ("Accept-Encoding", "gzip");

#[test]
fn the_client_chooses_among_the_codings() {
    let gzip = Compress(settings(ContentCoding::Gzip));
    let zstd = Compress(settings(ContentCoding::Zstd));
    let brotli = Compress(settings(ContentCoding::Brotli));
    for (accepts, expected) in [
        (None, IDENTITY),
        (Some(""), IDENTITY),
        (Some("gzip"), gzip),
        (Some("gzip, deflate, br, zstd"), zstd),
        (Some("gzip, deflate, br"), brotli),
        (Some("gzip;q=0.5, br;q=0.4"), gzip),
        (Some("gzip;q=0"), IDENTITY),
        (Some("deflate"), IDENTITY),
        (Some("identity;q=0"), IDENTITY),
        (Some("identity;q=0, gzip;q=0.1"), gzip),
        (Some("*"), IDENTITY),
        (Some("*, identity;q=0"), zstd),
        (Some("*;q=0"), IDENTITY),
        (Some("GZIP"), gzip),
    ] {
        let asked: Vec<_> = accepts
            .map(|it| ("Accept-Encoding", it))
            .into_iter()
            .collect();
        let found = decide_for(&policy(), &asked, 200, &[JSON], Some(5000));
        assert_eq!(found, expected, "{accepts:?}");
    }
}

#[test]
fn the_response_may_refuse() {
    let gzip = Compress(settings(ContentCoding::Gzip));
    for (status, sent, length, expected) in [
        (200, &[JSON][..], Some(1024), gzip),
        (200, &[JSON], Some(1023), Unchanged),
        (200, &[JSON], Some(0), Unchanged),
        (200, &[JSON], None, gzip),
        (404, &[JSON], Some(5000), gzip),
        (500, &[JSON], Some(5000), gzip),
        (204, &[JSON], None, Unchanged),
        (205, &[JSON], None, Unchanged),
        (304, &[JSON], None, Unchanged),
        (206, &[JSON], Some(5000), IDENTITY),
        (206, &[JSON], Some(5), IDENTITY),
        (206, &[("Content-Type", "image/png")], Some(5), Unchanged),
        (200, &[], Some(5000), Unchanged),
        (200, &[("Content-Type", "image/png")], Some(5000), Unchanged),
        (200, &[("Content-Type", "image/svg+xml")], Some(5000), gzip),
        (
            200,
            &[("Content-Type", " TEXT/Html ; charset=utf-8")],
            Some(5000),
            gzip,
        ),
        (
            200,
            &[("Content-Type", "font/woff2")],
            Some(5000),
            Unchanged,
        ),
        (
            200,
            &[JSON, ("Content-Encoding", "br")],
            Some(5000),
            Unchanged,
        ),
        (
            200,
            &[JSON, ("Content-Encoding", "identity")],
            Some(5000),
            Unchanged,
        ),
        (
            200,
            &[JSON, ("Repr-Digest", "sha-256=:AA==:")],
            Some(5000),
            Unchanged,
        ),
        (
            200,
            &[JSON, ("Cache-Control", "no-store, No-Transform")],
            Some(5000),
            Unchanged,
        ),
        (
            200,
            &[JSON, ("Cache-Control", "no-store")],
            Some(5000),
            gzip,
        ),
    ] {
        let found = decide_for(&policy(), &[GZIP], status, sent, length);
        assert_eq!(found, expected, "{status} {sent:?} {length:?}");
    }
}

#[test]
fn the_request_may_refuse() {
    let gzip = Compress(settings(ContentCoding::Gzip));
    let range = ("Range", "bytes=0-9");
    let cross = ("Sec-Fetch-Site", "cross-site");
    let cookie = ("Cookie", "a=b");
    let by = |name| Decision::Identity(IdentityCause::Field(name));
    for (asked, expected) in [
        (&[GZIP, range][..], IDENTITY),
        (
            &[GZIP, ("Cache-Control", "no-transform")],
            by("Cache-Control"),
        ),
        (&[GZIP, cross], gzip),
        (&[GZIP, cookie], gzip),
        (&[GZIP, cross, cookie], by("Sec-Fetch-Site")),
        (
            &[GZIP, cross, ("Authorization", "Basic YTpi")],
            by("Sec-Fetch-Site"),
        ),
        (&[GZIP, ("Sec-Fetch-Site", "same-site"), cookie], gzip),
        (&[GZIP, ("Sec-Fetch-Site", "same-origin"), cookie], gzip),
    ] {
        let found = decide_for(&policy(), asked, 200, &[JSON], Some(5000));
        assert_eq!(found, expected, "{asked:?}");
    }
    let asked = [GZIP, cross, cookie];
    let open = Compression {
        cross_site: true,
        ..Compression::default()
    };
    for policy in [
        Policy::new(&open, true),
        Policy::new(&Compression::default(), false),
    ] {
        assert_eq!(decide_for(&policy, &asked, 200, &[JSON], None), gzip);
    }
}

#[test]
fn a_range_of_another_method_means_nothing() {
    let meta_fields = fields(&[JSON]);
    let meta = ResponseMeta {
        status: Status::OK,
        fields: &meta_fields,
        length: Some(5000),
    };
    for method in ["HEAD", "POST"] {
        let head = request(method, &[GZIP, ("Range", "bytes=0-9")]);
        let found = policy().decide(&head, meta);
        assert!(matches!(found, Compress(_)), "{method}");
    }
}

#[test]
fn the_configuration_says_what_is_worth_it() {
    let config = Compression {
        algorithms: vec![ContentCoding::Gzip],
        types: vec!["application/*+json".to_owned(), "*".to_owned()],
        min_size: 0,
        gzip_level: 9,
        ..Compression::default()
    };
    let policy = Policy::new(&config, true);
    let best = Compress(EncoderSettings {
        coding: ContentCoding::Gzip,
        level: 9,
        size: EncoderSize::Full,
    });
    for (length, expected) in [(Some(1), best), (Some(0), Unchanged), (None, best)] {
        let sent = [("Content-Type", "image/png")];
        let asked = [("Accept-Encoding", "zstd, gzip")];
        let found = decide_for(&policy, &asked, 200, &sent, length);
        assert_eq!(found, expected, "{length:?}");
    }
    let narrow = Policy::new(
        &Compression {
            types: vec!["application/*+json".to_owned()],
            ..config
        },
        true,
    );
    for (kind, expected) in [
        ("application/ld+json", best),
        ("application/+json", best),
        ("application/json", Unchanged),
        ("text/ld+json", Unchanged),
    ] {
        let found = decide_for(&narrow, &[GZIP], 200, &[("Content-Type", kind)], None);
        assert_eq!(found, expected, "{kind}");
    }
}
