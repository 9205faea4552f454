//! Tests of the common parts: lengths, statuses, and which errors are refusals.

use super::*;
use crate::head::final_status;

fn with_length(values: &[&str]) -> Result<Option<u64>, GatewayError> {
    let mut head = HeadBuilder::new();
    for value in values {
        head.push(
            b"content-LENGTH",
            value.as_bytes(),
            &GatewayHeadLimits::default(),
        )?;
    }
    Ok(head.finish(Status::OK).content_length)
}

#[test]
fn reads_one_length_and_refuses_the_rest() {
    let refused = Err(GatewayError::BadContentLength);
    for (values, expected) in [
        (&["5"][..], Ok(Some(5))),
        (&[" 5 "], Ok(Some(5))),
        (&["005"], Ok(Some(5))),
        (&["5", "5"], Ok(Some(5))),
        (&["5, 5"], Ok(Some(5))),
        (&["9223372036854775807"], Ok(Some(i64::MAX as u64))),
        (&["9223372036854775808"], refused),
        (&["99999999999999999999999"], refused),
        (&["5", "6"], refused),
        (&["5,"], refused),
        (&[""], refused),
        (&["+5"], refused),
        (&["-5"], refused),
        (&["0x5"], refused),
        (&["5 0"], refused),
        (&["5.0"], refused),
    ] {
        assert_eq!(with_length(values), expected, "{values:?}");
    }
}

#[test]
fn takes_final_statuses_only() {
    for (code, expected) in [
        (0, None),
        (99, None),
        (100, None),
        (103, None),
        (199, None),
        (200, Some(Status::OK)),
        (599, Status::new(599)),
        (600, None),
        (999, None),
        (u16::MAX, None),
    ] {
        assert_eq!(final_status(code), expected, "{code}");
    }
}

#[test]
fn counts_a_body_to_the_byte() {
    let head = |code, length: &str| {
        let mut head = HeadBuilder::new();
        head.push(
            b"Content-Length",
            length.as_bytes(),
            &GatewayHeadLimits::default(),
        )
        .unwrap();
        head.finish(Status::new(code).unwrap())
    };
    let mut count = RemainingBody::new(&head(200, "3"), false);
    assert_eq!(count.finish(), Err(GatewayError::BodyTooShort));
    assert_eq!(count.consume(b"ab"), Ok(Some(GatewayEvent::Body(b"ab"))));
    assert_eq!(count.consume(b"cd"), Err(GatewayError::BodyTooLong));
    assert_eq!(count.consume(b"c"), Ok(Some(GatewayEvent::Body(b"c"))));
    assert_eq!(count.finish(), Ok(()));
    for (what, code, answers_head) in [
        ("a response to HEAD", 200, true),
        ("204", 204, false),
        ("304", 304, false),
    ] {
        let mut count = RemainingBody::new(&head(code, "3"), answers_head);
        assert_eq!(count.finish(), Ok(()), "{what}");
        assert_eq!(count.consume(b"abcd"), Ok(None), "{what}");
    }
}

#[test]
fn knows_which_errors_let_another_server_try() {
    for (error, expected) in [
        (GatewayError::Overloaded, true),
        (GatewayError::CannotMultiplex, true),
        (GatewayError::UnknownRole, true),
        (GatewayError::FastCgiStatus(9), false),
        (GatewayError::Truncated, false),
        (GatewayError::IncompleteHead, false),
    ] {
        assert_eq!(error.is_refusal(), expected, "{error}");
    }
}
