//! File names, the lock, and foreign files.

use super::*;
use crate::store::tests::TempFolder;

#[test]
fn names_are_read_back_and_others_are_not_names() {
    let name = ObjectName {
        hash: 0xab << 120 | 77,
        number: 5,
    };
    let path = name.path();
    assert!(path.starts_with("ab/ab"));
    assert_eq!(ObjectName::parse(&path.as_bytes()[3..]), Some(name));
    for wrong in [
        "",
        "x",
        "lock",
        "ab",
        &path,
        &path[3..50],
        &path[3..].to_uppercase(),
    ] {
        assert_eq!(ObjectName::parse(wrong.as_bytes()), None, "{wrong}");
    }
}

#[test]
fn a_dir_has_one_owner_and_foreign_files_stay() {
    let temp = TempFolder::new("owner");
    let (folder, lease) = CacheDir::open(temp.path(), None).unwrap();
    assert!(matches!(
        CacheDir::open(temp.path(), None),
        Err(OpenDirError::InUse)
    ));
    let foreign = ["notes.txt", "tmp/notes", "objects/ab/x", "tmp/0123"];
    std::fs::create_dir_all(temp.path().join("objects/ab")).unwrap();
    for name in foreign {
        std::fs::write(temp.path().join(name), "mine").unwrap();
    }
    drop(folder.create_temporary(3).unwrap());
    drop(folder.create_temporary(9).unwrap());
    folder.remove_stale_temporaries(9).unwrap();
    assert!(folder.create_temporary(9).is_err() && folder.create_temporary(3).is_ok());
    assert!(folder.object_names(0xab).unwrap().is_empty());
    folder.probe([20, 21]).unwrap();
    for name in foreign {
        assert!(temp.path().join(name).exists(), "{name}");
    }
    assert!(folder.is_at(temp.path()).unwrap());
    drop(lease);
    let (again, _lease) = CacheDir::open(temp.path(), None).unwrap();
    assert!(again.is_at(temp.path()).unwrap());
    folder.close();
    assert!(folder.create_temporary(30).is_err());
}

#[test]
fn a_dir_with_other_content_is_refused() {
    let temp = TempFolder::new("foreign");
    for name in ["probe", "purges"] {
        std::fs::write(temp.path().join(name), "mine").unwrap();
    }
    let opened = CacheDir::open(temp.path(), None);
    assert!(
        matches!(opened, Err(OpenDirError::NotCacheDir(_))),
        "{opened:?}"
    );
    assert!(!temp.path().join("lock").exists() && !temp.path().join("tmp").exists());
    // A lock marks a cache's directory; foreign files in it stay untouched.
    std::fs::write(temp.path().join("lock"), "").unwrap();
    let (folder, _lease) = CacheDir::open(temp.path(), None).unwrap();
    folder.probe([20, 21]).unwrap();
    for name in ["probe", "purges"] {
        let text = std::fs::read_to_string(temp.path().join(name)).unwrap();
        assert_eq!(text, "mine", "{name}");
    }
    assert_eq!(
        std::fs::read_dir(temp.path().join("tmp")).unwrap().count(),
        0
    );
    // A new file system is empty.
    let new = temp.path().join("new");
    std::fs::create_dir_all(new.join("lost+found")).unwrap();
    assert!(CacheDir::open(&new, None).is_ok());
}

#[test]
fn bytes_are_reserved_within_the_bound() {
    let temp = TempFolder::new("bytes");
    let (folder, _lease) = CacheDir::open(temp.path(), None).unwrap();
    assert!(
        folder.reserve_bytes(60, 100)
            && !folder.reserve_bytes(60, 100)
            && folder.reserve_bytes(40, 100)
    );
    folder.release_bytes(50);
    assert!(folder.reserve_bytes(50, 100) && !folder.reserve_bytes(u64::MAX, u64::MAX));
    folder.release_bytes(1000);
    assert_eq!(folder.used_bytes(), 0);
    assert_eq!(
        (
            allocated_bytes(0),
            allocated_bytes(4096),
            allocated_bytes(4097)
        ),
        (4096, 4096, 8192)
    );
}

#[test]
fn a_file_system_that_asks_others_is_waited_for_in_the_pool() {
    // FUSE, NFS, CIFS, SMB2, 9P and Ceph.
    for kind in [
        0x6573_5546_i64,
        0x6969,
        0xff53_4d42,
        0xfe53_4d42,
        0x0102_1997,
        0x00c3_6400,
    ] {
        assert!(!is_local(kind), "{kind:x}");
    }
    assert!(is_local(0xef53_i64) && is_local(0x0102_1994_i64) && !is_local(-1_i64));
    let temp = TempFolder::new("kind");
    let (mut folder, _lease) = CacheDir::open(temp.path(), None).unwrap();
    let name = ObjectName { hash: 1, number: 2 };
    drop(folder.create_temporary(2).unwrap());
    folder.commit(name).unwrap();
    folder.is_local = false;
    assert!(folder.open_object_if_cached(name).is_none());
    assert!(folder.open_object(name, OFlags::RDONLY).is_ok());
}
