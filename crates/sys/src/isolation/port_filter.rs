//! A seccomp filter for programs with limited TCP ports: closes the ways to a port that Landlock
//! does not check.
//!
//! Entered with the limits ([`access`](super::access)), in addition to the sandbox's filter.
//!
//! # Invariants
//! - Refused calls fail as on a kernel that lacks the feature, so that libraries use the usual way,
//!   which is limited.
//! - Calls of other interfaces are left to the sandbox's filter, which refuses and reports them
//!   all: an error of this one would hide the report.

use libc::{BPF_JEQ, BPF_JGE, BPF_JSET, c_long, sock_filter};

use super::seccomp::{
    ARCHITECTURE, ARCHITECTURE_OFFSET, ARGUMENT_OFFSET, NUMBER_OFFSET, X32_CALL_BASE,
};
use super::seccomp::{branch, load, match_call, return_action, return_error};

/// TCP by other names: SMC falls back to TCP, an MPTCP connection is a TCP connection.
const SMC_FAMILY: u32 = 43;
const SMC_PROTOCOL: u32 = 256;
const MPTCP_PROTOCOL: u32 = 262;

/// Calls that connect if a flag says so (`MSG_FASTOPEN`), and the index of that argument.
const SENDING: [(c_long, u32); 3] = [
    (libc::SYS_sendto, 3),
    (libc::SYS_sendmsg, 2),
    (libc::SYS_sendmmsg, 3),
];

/// Argument index, test, the value that refuses the call, and its error.
type ArgumentCheck = (u32, u32, u32, i32);

/// The filter as kernel instructions; `None` for a processor with unknown call numbers.
pub(super) fn build_port_filter() -> Option<Vec<sock_filter>> {
    let mut filter = vec![
        load(ARCHITECTURE_OFFSET),
        // Other interfaces are refused by the sandbox's filter, which reports them: an error of
        // this filter would take precedence.
        branch(BPF_JEQ, ARCHITECTURE?, 1, 0),
        return_action(libc::SECCOMP_RET_ALLOW),
        load(NUMBER_OFFSET),
        branch(BPF_JGE, X32_CALL_BASE, 0, 1),
        return_action(libc::SECCOMP_RET_ALLOW),
    ];
    // It performs all other calls, unseen by filters.
    filter.extend(match_call(
        libc::SYS_io_uring_setup,
        &[return_error(libc::EPERM)],
    ));
    let socket = [(0, SMC_FAMILY), (2, SMC_PROTOCOL), (2, MPTCP_PROTOCOL)];
    let socket = socket.map(|(argument, value)| (argument, BPF_JEQ, value, libc::EPROTONOSUPPORT));
    filter.extend(guard(libc::SYS_socket, &socket));
    for (call, argument) in SENDING {
        let flag = libc::MSG_FASTOPEN.unsigned_abs();
        filter.extend(guard(call, &[(argument, BPF_JSET, flag, libc::EOPNOTSUPP)]));
    }
    filter.push(return_action(libc::SECCOMP_RET_ALLOW));
    Some(filter)
}

/// Checks the lower halves of a call's arguments; the kernel uses no more of them.
fn guard(call: c_long, checks: &[ArgumentCheck]) -> Vec<sock_filter> {
    let checks = checks.iter().flat_map(|(argument, test, value, error)| {
        let at = ARGUMENT_OFFSET + 8 * argument;
        [load(at), branch(*test, *value, 0, 1), return_error(*error)]
    });
    let checks: Vec<_> = checks
        .chain([return_action(libc::SECCOMP_RET_ALLOW)])
        .collect();
    match_call(call, &checks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::super::seccomp;

    fn socket(family: i32, protocol: i32) -> io::Result<OwnedFd> {
        #[expect(unsafe_code, reason = "no safe wrapper has these protocols")]
        // SAFETY: numbers only; the descriptor is new.
        unsafe {
            match libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(OwnedFd::from_raw_fd(fd)),
            }
        }
    }

    fn send_to(socket: &OwnedFd, flags: i32, port: u16) -> io::Result<()> {
        let address = libc::sockaddr_in {
            sin_family: 2,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be(),
            },
            sin_zero: [0; 8],
        };
        #[expect(unsafe_code, reason = "no safe wrapper has this flag")]
        // SAFETY: the bytes and the address are alive for the call.
        let sent = unsafe {
            let (fd, to) = (socket.as_raw_fd(), (&raw const address).cast());
            libc::sendto(fd, b"x".as_ptr().cast(), 1, flags, to, 16)
        };
        match sent {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    #[test]
    fn the_ways_past_a_limit_on_ports_are_closed() {
        let Some(filter) = build_port_filter() else {
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let within = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            seccomp::install(&filter).unwrap();
            for (family, protocol) in [(libc::AF_INET, 262), (libc::AF_INET6, 262)]
                .into_iter()
                .chain([(libc::AF_INET, 256), (43, 0), (43, 1)])
            {
                let error = socket(family, protocol).unwrap_err().raw_os_error();
                assert_eq!(error, Some(libc::EPROTONOSUPPORT), "{family} {protocol}");
            }
            let tcp = socket(libc::AF_INET, 0).unwrap();
            let refused = send_to(&tcp, libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL, port);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
            let flag = c_long::from(libc::MSG_FASTOPEN);
            for (call, arguments, error) in [
                (libc::SYS_sendmsg, [-1, 0, flag, 0], libc::EOPNOTSUPP),
                (libc::SYS_sendmmsg, [-1, 0, 0, flag], libc::EOPNOTSUPP),
                (libc::SYS_io_uring_setup, [1, 0, 0, 0], libc::EPERM),
            ] {
                let [first, second, third, fourth] = arguments;
                #[expect(unsafe_code, reason = "no safe wrapper offers these calls")]
                // SAFETY: null pointers and a descriptor that is none.
                let done = unsafe { libc::syscall(call, first, second, third, fourth) };
                let found = io::Error::last_os_error().raw_os_error();
                assert_eq!((done, found), (-1, Some(error)), "{call}");
            }
            // Everything else works.
            let (mut one, _other) = UnixStream::pair().unwrap();
            io::Write::write_all(&mut one, b"x").unwrap();
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            udp.send_to(b"x", ("127.0.0.1", port)).unwrap();
        });
        within.join().unwrap();
        let nobody = listener.accept().unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::WouldBlock);
    }
}
