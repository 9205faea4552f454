//! The cost of streams to the server and the machine: memory, CPU, load average.
//!
//! The coordinator takes a baseline before the first stream and a reading with each sample. The
//! kernel's share is not known per process: it is the growth of slabs and TCP buffers of the whole
//! machine. Known limits: it includes sockets of other programs, and without permission to read
//! `/proc/slabinfo` also the caches of accessed files.

#![allow(
    clippy::disallowed_methods,
    reason = "/proc is memory, and is read on the coordinator's own thread"
)]

use std::fs;

use crate::deploy::resource_usage::{ProcessTree, ResourceUsage, memory_of_all};
use crate::report::HoldSample;

/// The machine and the server's processes.
#[derive(Debug)]
pub(super) struct Sampler {
    servers: Vec<ProcessTree>,
    kernel_bytes_before: Option<u64>,
    /// Memory of the server before the first stream, and CPU seconds until then.
    pub(super) server_bytes_before: Option<u64>,
    cpu_before: f64,
}

impl Sampler {
    /// Measures the baseline.
    pub(super) fn new(servers: Vec<ProcessTree>) -> Self {
        let mut sampler = Self {
            servers,
            kernel_bytes_before: kernel_bytes(),
            server_bytes_before: None,
            cpu_before: 0.0,
        };
        sampler.server_bytes_before = sampler.server_memory();
        sampler.cpu_before = sampler.server_cpu_total();
        sampler
    }

    /// A sample with the cost alone.
    pub(super) fn sample(&self) -> HoldSample {
        let grown = |(now, before): (u64, u64)| now.saturating_sub(before);
        HoldSample {
            server_bytes: self.server_memory(),
            kernel_bytes: kernel_bytes().zip(self.kernel_bytes_before).map(grown),
            load_average: load_average().unwrap_or(0.0),
            ..HoldSample::default()
        }
    }

    /// CPU seconds of the server's processes since the baseline.
    pub(super) fn server_cpu_seconds(&self) -> Option<f64> {
        // Nothing is known of processes that have ended.
        let is_there = !self.servers.is_empty() && self.servers.iter().all(ProcessTree::is_alive);
        // The time of children that were not waited for is lost.
        is_there.then(|| (self.server_cpu_total() - self.cpu_before).max(0.0))
    }

    fn server_memory(&self) -> Option<u64> {
        if self.servers.is_empty() {
            return None;
        }
        let memory = memory_of_all(&self.servers);
        (memory.processes > 0).then_some(memory.bytes)
    }

    fn server_cpu_total(&self) -> f64 {
        let spent = self.servers.iter().map(ResourceUsage::cpu_time);
        spent.map(|spent| spent.cpu_seconds).sum()
    }
}

/// Slabs, which hold sockets and their files, and TCP's buffers.
fn kernel_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let page = rustix::param::page_size() as u64;
    let sockets = fs::read_to_string("/proc/slabinfo").ok();
    // The kernel counts inodes and names of sockets as reclaimable, together with those of files,
    // which come and go with every file access.
    let slabs = match sockets.and_then(|text| socket_inode_bytes(&text, page)) {
        Some(names) => meminfo_bytes(&meminfo, "SUnreclaim:")? + names,
        None => meminfo_bytes(&meminfo, "Slab:")?,
    };
    let buffers = fs::read_to_string("/proc/net/sockstat").ok();
    let pages = buffers.and_then(|text| tcp_pages(&text)).unwrap_or(0);
    Some(slabs + pages * page)
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(name))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The inodes of sockets, and a dentry for each; slabinfo(5).
fn socket_inode_bytes(slabinfo: &str, page: u64) -> Option<u64> {
    let row = |name: &str| -> Option<Vec<u64>> {
        let mut lines = slabinfo.lines().map(str::split_whitespace);
        let line = lines.find(|words| words.clone().next() == Some(name))?;
        Some(line.filter_map(|word| word.parse().ok()).collect())
    };
    // Active and total objects, object size, objects and pages per slab; three tunables; active and
    // total slabs.
    let (inodes, names) = (row("sock_inode_cache")?, row("dentry")?);
    let slabs = inodes.get(9)? * inodes.get(4)?;
    Some(slabs * page + inodes.first()? * names.get(2)?)
}

fn tcp_pages(sockstat: &str) -> Option<u64> {
    let line = sockstat.lines().find(|line| line.starts_with("TCP:"))?;
    let mut words = line.split_whitespace();
    words.find(|word| *word == "mem")?;
    words.next()?.parse().ok()
}

/// Over the last minute.
fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_says() {
        let meminfo = "MemTotal:  24 kB\nSlab:   280080 kB\nSReclaimable: 1 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "Slab:"), Some(280_080 * 1024));
        assert_eq!(meminfo_bytes("MemTotal: 1 kB\n", "Slab:"), None);
        let slabinfo = "slabinfo - version: 2.1\n\
            # name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables\n\
            sock_inode_cache 100 114 832 19 4 : tunables 0 0 0 : slabdata 6 6 0\n\
            dentry 9000 9009 192 21 1 : tunables 0 0 0 : slabdata 429 429 0\n";
        let expected = 6 * 4 * 4096 + 100 * 192;
        assert_eq!(socket_inode_bytes(slabinfo, 4096), Some(expected));
        assert_eq!(socket_inode_bytes("slabinfo - version: 2.1\n", 4096), None);
        let sockstat = "sockets: used 93\nTCP: inuse 35 orphan 0 tw 7 alloc 35 mem 12\n";
        assert_eq!(tcp_pages(sockstat), Some(12));
        assert_eq!(tcp_pages("UDP: inuse 0 mem 3\n"), None);
    }

    #[test]
    fn looks_at_this_process_and_machine() {
        let us = ProcessTree::from_pid(std::process::id()).unwrap();
        let sampler = Sampler::new(vec![us]);
        assert!(sampler.server_bytes_before.unwrap() > 100_000);
        let cost = sampler.sample();
        assert!(cost.server_bytes.unwrap() > 100_000 && cost.kernel_bytes.is_some());
        assert!(sampler.server_cpu_seconds().unwrap() >= 0.0);
        let nobody = Sampler::new(Vec::new());
        assert_eq!(
            (nobody.sample().server_bytes, nobody.server_cpu_seconds()),
            (None, None)
        );
    }
}
