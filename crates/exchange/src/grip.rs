//! GRIP fields, which have names that begin with `Grip-`.
//!
//! A back end holds a connection by a response with such fields, and with a body of instructions
//! beside them. By others the hub tells it that it may. `apps` and `proxy` mark a response that has
//! any ([`crate::Response::instructions`]), the hub's handler around them applies them, and `edge`
//! removes those that are left.
//!
//! # Invariants
//! - No client can send one ([`crate::field_policy::classify_field`]), and none sees one.

use penstock_http::{FieldBlock, starts_with_ignore_case};

/// The type of a body of instructions.
const INSTRUCT_TYPE: &[u8] = b"application/grip-instruct";

/// Whether a field of that name is for the hub or from it.
#[must_use]
pub fn is_grip_field(name: &[u8]) -> bool {
    starts_with_ignore_case(name, "grip-")
}

/// Whether a body of that `Content-Type` has GRIP instructions.
#[must_use]
pub fn is_grip_instruct_type(content_type: &[u8]) -> bool {
    let behind = content_type.get(INSTRUCT_TYPE.len());
    starts_with_ignore_case(content_type, INSTRUCT_TYPE)
        && matches!(behind, None | Some(b';' | b' ' | b'\t'))
}

/// Removes all GRIP fields.
pub fn remove_grip_fields(fields: &mut FieldBlock) {
    fields.remove_where(|name| is_grip_field(name.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_hub_are_known_in_any_case() {
        for (name, expected) in [
            ("Grip-Hold", true),
            ("GRIP-CHANNEL", true),
            ("grip-", true),
            ("Grip", false),
            ("Gripe-Hold", false),
            ("X-Grip-Hold", false),
        ] {
            assert_eq!(is_grip_field(name.as_bytes()), expected, "{name}");
        }
        for (value, expected) in [
            ("application/grip-instruct", true),
            ("Application/Grip-Instruct; charset=utf-8", true),
            ("application/grip-instruct ;a", true),
            ("application/grip-instructions", false),
            ("application/grip", false),
            ("text/plain", false),
        ] {
            assert_eq!(is_grip_instruct_type(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn only_fields_of_the_hub_are_taken_out() {
        let mut fields = FieldBlock::new();
        for (name, value) in [
            ("Grip-Hold", "stream"),
            ("A", "1"),
            ("grip-channel", "a"),
            ("Grip-Channel", "b"),
            ("Grip", "2"),
            ("Grip-Sig", "c"),
        ] {
            fields.push(name, value.as_bytes()).unwrap();
        }
        remove_grip_fields(&mut fields);
        assert_eq!(fields.as_bytes(), b"A: 1\r\nGrip: 2\r\n");
        remove_grip_fields(&mut fields);
        assert_eq!(fields.as_bytes(), b"A: 1\r\nGrip: 2\r\n");
    }
}
