//! Compiles the native part of the Python worker: `workers/native/python.c` and `asgi_*.c`, a shared
//! library that goes into the binary with the scripts.
//!
//! It needs no headers of Python, and links nothing: every symbol is one of the interpreter that
//! loads it or of the C library of that interpreter. One file serves all of them, whatever the C
//! library of the server is. (On processors of 32 bits the interpreter refuses it, as a division is
//! missing, and the scripts serve.)

use std::path::PathBuf;
use std::process::ExitCode;

const FOLDER: &str = "workers/native";
const SOURCES: [&str; 6] = [
    "python.c",
    "asgi_call.c",
    "asgi_channel.c",
    "asgi_http.c",
    "asgi_scope.c",
    "asgi_types.c",
];

#[expect(clippy::disallowed_methods, reason = "a build has no loop to block")]
fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=workers/native");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    // With the flags of the target, such as the prefix for paths where packages are built.
    let mut build = cc::Build::new();
    build
        .files(SOURCES.map(|name| format!("{FOLDER}/{name}")))
        .opt_level(2)
        .debug(false)
        .pic(true)
        .flag("-fvisibility=hidden")
        .flag("-Wno-missing-field-initializers")
        .warnings(true)
        .extra_warnings(true);
    let objects = match build.try_compile_intermediates() {
        Ok(objects) => objects,
        Err(error) => return fail(&error.to_string()),
    };
    // Apart, as some compilers have no headers of a C library that is not linked.
    let mut command = build.get_compiler().to_command();
    command
        .args(["-shared", "-nostdlib", "-Wl,-s"])
        .args(objects)
        .arg("-o")
        .arg(out.join("python.so"));
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => fail(&format!("{command:?}: {status}")),
        Err(error) => fail(&format!("{command:?}: {error}: a C compiler is needed")),
    }
}

fn fail(problem: &str) -> ExitCode {
    println!("cargo::error={FOLDER}: {problem}");
    ExitCode::FAILURE
}
