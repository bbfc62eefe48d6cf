//! The source tree is layered as it is drawn: pure files touch neither clocks nor threads nor sockets, the parts
//! know only what they may, threads are made in one place and have our name, files stay short.

mod planted;
mod rules;
mod source;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use source::Source;

#[test]
fn the_source_tree_keeps_the_rules() {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let sources = read_tree(&root).unwrap();
    for expected in ["src/lib.rs", "src/error.rs", "src/pulsar/topic.rs"] {
        assert!(sources.iter().any(|source| source.path == expected), "{expected} was not read");
    }
    let complaints: Vec<String> = without_tests(sources).iter().flat_map(rules::check).collect();
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

fn read_tree(root: &Path) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let inside = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                sources.push(Source::read(&inside, &fs::read_to_string(&path)?));
            }
        }
    }
    Ok(sources)
}

/// Empties the files that are declared under `#[cfg(test)]`; their length still counts.
fn without_tests(mut sources: Vec<Source>) -> Vec<Source> {
    let mut tests = Vec::new();
    for source in &sources {
        let stem = source.path.trim_end_matches(".rs");
        let folder = ["/mod", "/lib", "/main"].iter().find_map(|name| stem.strip_suffix(name)).unwrap_or(stem);
        tests.extend(source.test_modules.iter().map(|module| format!("{folder}/{module}")));
    }
    for source in &mut sources {
        let in_tests = |test: &String| {
            source.path.strip_prefix(test.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        if tests.iter().any(in_tests) {
            *source = Source { lines: source.lines, ..Source::read(&source.path, "") };
        }
    }
    sources
}
