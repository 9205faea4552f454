//! Times of the day in the time zone of the machine, as the C library knows it (`TZ`,
//! `/etc/localtime`).

use std::mem::MaybeUninit;

/// The first moment after `after`, both in seconds since 1970, at which the clocks show this time.
/// On a day that has no such time, as the clocks go forward over it, the time that they show
/// instead. `None` when the C library cannot tell.
///
/// May read a file at the first call.
#[must_use]
pub fn next_time_of_day(after: u64, hour: u32, minute: u32) -> Option<u64> {
    let after = libc::time_t::try_from(after).ok()?;
    let mut today = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the call, and on success all of `today` is written.
    #[expect(unsafe_code, reason = "no safe wrapper knows the time zone")]
    let today = unsafe {
        if libc::localtime_r(&raw const after, today.as_mut_ptr()).is_null() {
            return None;
        }
        today.assume_init()
    };
    // The day of `after` may have it still to come; the one after that always has.
    (0..=2).find_map(|days| {
        let mut at = today;
        at.tm_mday += days;
        (at.tm_hour, at.tm_min, at.tm_sec) =
            (i32::try_from(hour).ok()?, i32::try_from(minute).ok()?, 0);
        // Summer time or not: the library finds out.
        at.tm_isdst = -1;
        // SAFETY: the pointer is valid for the call; the library corrects the fields.
        #[expect(unsafe_code, reason = "no safe wrapper knows the time zone")]
        let at = unsafe { libc::mktime(&raw mut at) };
        (at > after).then(|| u64::try_from(at).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_time_is_within_a_day_and_shows_that_time() {
        for after in (0..400).map(|step| 1_780_000_000 + step * 3_601) {
            let next = next_time_of_day(after, 3, 30).unwrap();
            // A day may have 25 hours.
            assert!(after < next && next <= after + 25 * 3600, "{after} {next}");
            let again = next_time_of_day(next, 3, 30).unwrap();
            assert!((23 * 3600..=25 * 3600).contains(&(again - next)), "{next}");
        }
    }
}
