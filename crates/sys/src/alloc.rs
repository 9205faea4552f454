//! The process's allocator: the C library's, with a cache of freed small blocks for each event
//! loop.
//!
//! A request allocates and frees some ten small blocks, in bursts: an iteration of an event loop
//! begins or ends many requests. The C library caches seven freed blocks of each size for a thread
//! and merges others with their neighbours, only to split them again: a twelfth of Penstock's own
//! instructions for a proxied request. That number can only be set by the environment of an `exec`.
//!
//! `penstock` makes [`Allocator`] its global allocator; `runtime` calls [`enable_free_lists`] on
//! its loops. Other threads cache nothing.
//!
//! # Invariants
//! - A block with a layout that has a class was allocated by the C library with the size of that
//!   class, on any thread, so that any thread may cache or free it.

#![expect(
    unsafe_code,
    reason = "an allocator deals in raw memory: each of its functions is unsafe"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

/// The largest block that is cached: the largest that the C library caches for a thread, too.
const MAX_CACHED_BYTES: usize = 1032;
/// Size classes: 8, 24, 40 and so on to [`MAX_CACHED_BYTES`], the block sizes of glibc on 64-bit
/// machines: no block is rounded up further than by the C library.
const CLASS_COUNT: usize = class_of_size(MAX_CACHED_BYTES) + 1;
/// Maximum bytes that a thread caches in one class; 2 MiB if all of them are full.
const MAX_CLASS_BYTES: usize = 32 * 1024;
const CLASS_STEP: usize = 16;
/// Maximum alignment of blocks that have a class.
const CLASS_ALIGN: usize = 8;

/// The C library's allocator behind the thread's cache.
#[derive(Debug, Default, Clone, Copy)]
pub struct Allocator;

/// While it exists, its thread caches small blocks that are freed on it.
#[derive(Debug)]
pub struct FreeListGuard {
    /// It belongs to its thread.
    not_send: PhantomData<*const ()>,
}

/// Lets this thread cache and reuse freed small blocks until the guard is dropped.
#[must_use]
pub fn enable_free_lists() -> FreeListGuard {
    FREE_LISTS.with(|freed| {
        for (class, list) in freed.iter().enumerate() {
            list.free_capacity.set(capacity_of_class(class));
        }
    });
    FreeListGuard {
        not_send: PhantomData,
    }
}

impl Drop for FreeListGuard {
    fn drop(&mut self) {
        FREE_LISTS.with(|freed| {
            for (class, list) in freed.iter().enumerate() {
                while let Some(block) = list.pop() {
                    // SAFETY: blocks in the list of a class were allocated by `System` with that
                    // class's layout.
                    unsafe { System.dealloc(block, layout_of_class(class)) };
                }
                list.free_capacity.set(0);
            }
        });
    }
}

// SAFETY: each block comes from `System` or from a list of unused blocks that came from there. A
// block that has a class is always allocated with its class's size, so it is large enough for all
// layouts of its class.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = size_class(layout) else {
            // SAFETY: the caller's promises about `layout` are passed on.
            return unsafe { System.alloc(layout) };
        };
        FREE_LISTS
            .with(|freed| freed[class].pop())
            .unwrap_or_else(|| {
                // SAFETY: a class's size is never zero.
                unsafe { System.alloc(layout_of_class(class)) }
            })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = size_class(layout) else {
            // SAFETY: the caller's promises are passed on; without a class it was allocated with
            // this layout.
            return unsafe { System.dealloc(block, layout) };
        };
        // SAFETY: the caller no longer uses the block, and it has its class's size.
        if !FREE_LISTS.with(|freed| unsafe { freed[class].push(block) }) {
            // SAFETY: it was allocated by `System` with its class's layout.
            unsafe { System.dealloc(block, layout_of_class(class)) };
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // Large ones come zeroed from the kernel. Small ones are rare.
        match size_class(layout) {
            // SAFETY: a class's size is never zero.
            Some(class) => unsafe { System.alloc_zeroed(layout_of_class(class)) },
            // SAFETY: the caller's promises about `layout` are passed on.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (size_class(layout), size_class(wanted)) {
            // It is large enough already.
            (Some(had), Some(wanted)) if had == wanted => block,
            // SAFETY: it was allocated by `System` with its class's layout, or with `layout` when
            // it has none.
            (had, wanted_class) => unsafe {
                System.realloc(
                    block,
                    had.map_or(layout, layout_of_class),
                    wanted_class.map_or(size, size_of_class),
                )
            },
        }
    }
}

struct FreeList {
    first: Cell<*mut FreeBlock>,
    /// How many more blocks it may hold.
    free_capacity: Cell<usize>,
}

/// Stored at the beginning of a cached block.
struct FreeBlock {
    next: *mut Self,
}

thread_local! {
    // Without `Drop`, so that it exists until the thread's very end.
    static FREE_LISTS: [FreeList; CLASS_COUNT] = const { [const { FreeList { first: Cell::new(ptr::null_mut()), free_capacity: Cell::new(0) } }; CLASS_COUNT] };
}

impl FreeList {
    /// Takes the block that was freed last.
    #[inline]
    fn pop(&self) -> Option<*mut u8> {
        let first = self.first.get();
        if first.is_null() {
            return None;
        }
        // SAFETY: `push` wrote a link there, and the block was not used since.
        self.first.set(unsafe { (*first).next });
        self.free_capacity.set(self.free_capacity.get() + 1);
        Some(first.cast())
    }

    /// Caches `block`; returns false if the list is full.
    ///
    /// # Safety
    /// The block is unused, and it has the size of this list's class.
    // SAFETY: it writes into the block, which is unused by the caller's promise.
    #[inline]
    unsafe fn push(&self, block: *mut u8) -> bool {
        let Some(room) = self.free_capacity.get().checked_sub(1) else {
            return false;
        };
        let link = block.cast::<FreeBlock>();
        // SAFETY: the smallest class has room for a link, and every block its alignment.
        unsafe {
            link.write(FreeBlock {
                next: self.first.get(),
            });
        };
        self.first.set(link);
        self.free_capacity.set(room);
        true
    }
}

/// The class of blocks of this layout; none for large ones, and for those with a larger alignment.
#[inline]
const fn size_class(layout: Layout) -> Option<usize> {
    if layout.size() <= MAX_CACHED_BYTES && layout.align() <= CLASS_ALIGN {
        Some(class_of_size(layout.size()))
    } else {
        None
    }
}

#[inline]
const fn class_of_size(size: usize) -> usize {
    (size + 7) / CLASS_STEP
}

#[inline]
const fn size_of_class(class: usize) -> usize {
    class * CLASS_STEP + 8
}

#[inline]
const fn layout_of_class(class: usize) -> Layout {
    match Layout::from_size_align(size_of_class(class), CLASS_ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("a class's size is small"),
    }
}

/// How many blocks of this class a thread caches.
const fn capacity_of_class(class: usize) -> usize {
    MAX_CLASS_BYTES / size_of_class(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Layout = match Layout::from_size_align(920, 8) {
        Ok(layout) => layout,
        Err(_) => panic!("a layout"),
    };

    fn take(layout: Layout) -> *mut u8 {
        // SAFETY: every layout here has a size.
        let block = unsafe { Allocator.alloc(layout) };
        assert!(!block.is_null());
        // SAFETY: the block is ours, and that large: a second owner would show below, or under
        // miri.
        unsafe { block.write_bytes(0xA5, layout.size()) };
        block
    }

    fn give(block: *mut u8, layout: Layout) {
        // SAFETY: the block was allocated with the same layout, and is freed once.
        unsafe { Allocator.dealloc(block, layout) };
    }

    fn kept(layout: Layout) -> usize {
        let class = size_class(layout).expect("a class");
        FREE_LISTS.with(|freed| match freed[class].free_capacity.get() {
            0 if freed[class].first.get().is_null() => 0,
            room => capacity_of_class(class) - room,
        })
    }

    #[test]
    fn the_block_freed_last_is_reused_first() {
        let _kept = enable_free_lists();
        let (first, second) = (take(CALL), take(CALL));
        give(first, CALL);
        give(second, CALL);
        assert_eq!(kept(CALL), 2);
        assert_eq!((take(CALL), take(CALL)), (second, first));
        assert_eq!(kept(CALL), 0);
        give(first, CALL);
        give(second, CALL);
    }

    #[test]
    fn blocks_are_reused_once_and_the_lists_are_bounded() {
        let _kept = enable_free_lists();
        for size in 1..=2000 {
            let layout = Layout::from_size_align(size, 1).expect("a layout");
            let mut blocks: Vec<_> = (0..4).map(|_| take(layout)).collect();
            blocks.iter().for_each(|&block| give(block, layout));
            blocks = (0..4).map(|_| take(layout)).collect();
            blocks.sort_unstable();
            blocks.dedup();
            assert_eq!(blocks.len(), 4, "of {size} bytes");
            blocks.iter().for_each(|&block| give(block, layout));
        }
        let many: Vec<_> = (0..100).map(|_| take(CALL)).collect();
        many.into_iter().for_each(|block| give(block, CALL));
        assert_eq!(kept(CALL), MAX_CLASS_BYTES / 920);
    }

    #[test]
    fn nothing_is_kept_on_threads_without_the_guard() {
        give(take(CALL), CALL);
        assert_eq!(kept(CALL), 0);
        let guard = enable_free_lists();
        give(take(CALL), CALL);
        assert_eq!(kept(CALL), 1);
        drop(guard);
        assert_eq!(kept(CALL), 0);
        give(take(CALL), CALL);
        assert_eq!(kept(CALL), 0);
    }

    #[test]
    fn reallocation_keeps_the_bytes() {
        let _kept = enable_free_lists();
        let layout_of = |size| Layout::from_size_align(size, 8).expect("a layout");
        let mut size = 10;
        let mut block = take(layout_of(size));
        for next in [12, 24, 25, 500, 1032, 1033, 90_000, 1032, 40, 8] {
            // SAFETY: it was allocated with this layout, or has had this size since the last round.
            block = unsafe { Allocator.realloc(block, layout_of(size), next) };
            let same = size.min(next);
            // SAFETY: it has `next` bytes, of which these were there before.
            let bytes = unsafe { std::slice::from_raw_parts(block, same) };
            assert!(bytes.iter().all(|&byte| byte == 0xA5), "{size} to {next}");
            // SAFETY: it has `next` bytes now.
            unsafe { block.write_bytes(0xA5, next) };
            size = next;
        }
        give(block, layout_of(size));
    }

    #[test]
    fn a_block_from_one_thread_may_be_freed_on_another() {
        let _kept = enable_free_lists();
        let block = take(CALL) as usize;
        let address = std::thread::spawn(move || {
            let _kept = enable_free_lists();
            give(block as *mut u8, CALL);
            let again = take(CALL);
            give(again, CALL);
            again as usize
        })
        .join()
        .expect("the other thread");
        assert_eq!(address, block);
    }

    #[test]
    fn zeroed_is_zeroed() {
        let _kept = enable_free_lists();
        give(take(CALL), CALL);
        // SAFETY: the layout has a size.
        let block = unsafe { Allocator.alloc_zeroed(CALL) };
        // SAFETY: it has this many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(block, 920) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        give(block, CALL);
    }
}
