//! Tests of what others may open.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn what_is_created_is_closed_to_others_and_what_exists_is_found() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("a/b");
    create_directory(&directory).unwrap();
    create_directory(&directory).unwrap();
    let file = directory.join("file");
    options().write(true).create(true).truncate(false).open(&file).unwrap();
    assert_eq!([mode(&root.path().join("a")), mode(&directory), mode(&file)], [0o700, 0o700, 0o600]);
    assert!(open_to_others(&directory).unwrap().is_empty());

    set_mode(&file, 0o644);
    assert!(open_to_others(&directory).unwrap().is_empty(), "nobody else gets there");
    assert_eq!(warning(&directory), None);
    options().write(true).create(true).truncate(false).open(&file).unwrap();
    assert_eq!(mode(&file), 0o644, "what exists stays as it is");
    set_mode(&directory, 0o750);
    assert_eq!(open_to_others(&directory).unwrap(), [directory.clone(), file.clone()]);
    let (at, chmod) = (directory.display(), format!("chmod -R go= {}", directory.display()));
    assert_eq!(warning(&directory), Some(format!("other users of this host may open {at} and 1 more there: {chmod}")));
    set_mode(&directory, 0o740);
    let only_directory = [directory.clone()];
    assert_eq!(open_to_others(&directory).unwrap(), only_directory, "names are seen, files are not");
    set_mode(&directory, 0o711);
    set_mode(&file, 0o600);
    assert_eq!(open_to_others(&directory).unwrap(), only_directory);
}
