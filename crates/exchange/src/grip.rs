//! Which fields of a message are the house's hub's: those whose names begin with `Grip-`.
//!
//! A back end holds a connection by answering with such fields, or with a body of instructions; the hub
//! tells it by others that it may. `apps` and `proxy` mark a response that has any
//! ([`crate::Response::speaks_to_hub`]), the hub's own handler in front of them obeys, `edge` takes out what
//! nobody took. What must stay true: no client says one ([`crate::fields::fate`]), none sees one.

use penstock_http::FieldBlock;

/// What the names begin with.
const PREFIX: &[u8] = b"grip-";

/// The type of a body of instructions.
const INSTRUCT: &[u8] = b"application/grip-instruct";

/// Whether a field of that name is for the hub or from it.
#[must_use]
pub fn is_grip(name: &[u8]) -> bool {
    let start = name.get(..PREFIX.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// Whether a field of a response makes that one for the hub: a name of its own, or the type of a body of
/// instructions. The length and a letter decide nearly always.
#[must_use]
pub fn speaks_to_hub(name: &[u8], value: &[u8]) -> bool {
    match (name.len(), name.first().map_or(0, |byte| byte | 0x20)) {
        (12, b'c') => name.eq_ignore_ascii_case(b"content-type") && is_instruct(value),
        (_, b'g') => is_grip(name),
        _ => false,
    }
}

/// Whether a body of that `Content-Type` is one of instructions.
#[must_use]
pub fn is_instruct(content_type: &[u8]) -> bool {
    let Some((start, rest)) = content_type.split_at_checked(INSTRUCT.len()) else {
        return false;
    };
    start.eq_ignore_ascii_case(INSTRUCT) && matches!(rest.first(), None | Some(b';' | b' ' | b'\t'))
}

/// Takes out all fields of the hub's.
pub fn take_out(fields: &mut FieldBlock) {
    let next = |fields: &FieldBlock| {
        let mut names = fields.iter().map(|(name, _)| name);
        let found = names.find(|name| is_grip(name.as_bytes()));
        found.map(str::to_owned)
    };
    // Each turn takes out all of one name, of which a head has few.
    while let Some(name) = next(fields) {
        fields.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_hub_are_known_in_any_case() {
        for (name, value, expected) in [
            ("Grip-Hold", "stream", true),
            ("GRIP-CHANNEL", "a", true),
            ("grip-", "", true),
            ("Grip", "a", false),
            ("Gripe-Hold", "a", false),
            ("X-Grip-Hold", "a", false),
            ("Content-Type", "application/grip-instruct", true),
            (
                "content-type",
                "Application/Grip-Instruct; charset=utf-8",
                true,
            ),
            ("content-type", "application/grip-instruct ;a", true),
            ("content-type", "application/grip-instructions", false),
            ("content-type", "application/grip", false),
            ("content-type", "text/plain", false),
            ("Content-Typo", "application/grip-instruct", false),
        ] {
            let found = speaks_to_hub(name.as_bytes(), value.as_bytes());
            assert_eq!(found, expected, "{name}: {value}");
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
        take_out(&mut fields);
        assert_eq!(fields.as_bytes(), b"A: 1\r\nGrip: 2\r\n");
        take_out(&mut fields);
        assert_eq!(fields.as_bytes(), b"A: 1\r\nGrip: 2\r\n");
    }
}
