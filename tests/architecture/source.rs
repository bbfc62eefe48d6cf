//! Just enough of Rust's syntax to see which paths a file uses: comments, strings and tests are taken out, `use`
//! trees are unfolded, `self`, `super` and imported names are resolved.

use std::collections::HashMap;

/// One source file as the rules see it.
pub struct Source {
    /// From the top of the repository, with `/`.
    pub path: String,
    pub lines: usize,
    /// Every path that is imported or used, in full as far as the file tells.
    pub paths: Vec<String>,
    /// Names of the methods that are called.
    pub methods: Vec<String>,
    /// Modules that the file declares.
    pub modules: Vec<String>,
    /// Modules that it declares for tests alone.
    pub test_modules: Vec<String>,
    /// Comments and tests blanked, strings kept.
    pub text: String,
}

impl Source {
    pub fn read(path: &str, text: &str) -> Self {
        let (mut code, mut kept) = blank(text);
        let test_modules = take_out_tests(&mut code, &mut kept);
        let tokens = tokens(&code);
        let here = module_of(path);
        Self {
            path: path.to_owned(),
            lines: text.lines().count(),
            paths: paths(&tokens, &here),
            methods: methods(&tokens),
            modules: declared(&tokens),
            test_modules,
            text: kept.into_iter().collect(),
        }
    }
}

/// The text without comments and strings, and without comments alone; both as long as the text.
fn blank(text: &str) -> (Vec<char>, Vec<char>) {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut code, mut kept) = (chars.clone(), chars.clone());
    let mut i = 0;
    while i < chars.len() {
        let start = i;
        let mut is_comment = false;
        match (at(i), at(i + 1)) {
            ('/', '/') => {
                is_comment = true;
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            ('/', '*') => {
                is_comment = true;
                let mut depth = 0;
                while i < chars.len() {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
            }
            ('r', '"' | '#') if !is_word(at(start.wrapping_sub(1))) || at(start.wrapping_sub(1)) == 'b' => {
                let hashes = (i + 1..).take_while(|&j| at(j) == '#').count();
                i += 1 + hashes;
                if at(i) == '"' {
                    i += 1;
                    while i < chars.len() && !(at(i) == '"' && (1..=hashes).all(|j| at(i + j) == '#')) {
                        i += 1;
                    }
                    i += 1 + hashes;
                } else {
                    continue; // a raw identifier
                }
            }
            ('"', _) => i = after_quote(&at, i, '"', chars.len()),
            // A character, unless it is a lifetime.
            ('\'', '\\') => i = after_quote(&at, i, '\'', chars.len()),
            ('\'', _) if at(i + 2) == '\'' => i += 3,
            _ => {
                i += 1;
                continue;
            }
        }
        for j in start..i.min(chars.len()) {
            if at(j) != '\n' {
                set(&mut code, j);
                if is_comment {
                    set(&mut kept, j);
                }
            }
        }
    }
    (code, kept)
}

fn after_quote(at: &impl Fn(usize) -> char, start: usize, quote: char, end: usize) -> usize {
    let mut i = start + 1;
    while i < end && at(i) != quote {
        i += if at(i) == '\\' { 2 } else { 1 };
    }
    i + 1
}

fn set(chars: &mut [char], index: usize) {
    if let Some(c) = chars.get_mut(index) {
        *c = ' ';
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Blanks every item under `#[cfg(test)]`; returns the modules among them that live in other files.
fn take_out_tests(code: &mut [char], kept: &mut [char]) -> Vec<String> {
    let mut modules = Vec::new();
    let mut from = 0;
    while let Some(start) = find(code, from, "#[cfg(") {
        let close = (start..code.len()).find(|&i| code.get(i) == Some(&']')).unwrap_or(code.len());
        from = close;
        let condition: String = slice(code, start, close).split_whitespace().collect();
        let for_tests = condition == "#[cfg(test)" || condition.starts_with("#[cfg(all(test");
        if !for_tests {
            continue;
        }
        let end = item_end(code, close + 1);
        let item = slice(code, close + 1, end);
        let words: Vec<&str> = item.split_whitespace().collect();
        if let Some(["mod", name]) = words.iter().rev().take(2).rev().copied().collect::<Vec<_>>().get(..2) {
            modules.extend(name.strip_suffix(';').map(str::to_owned));
        }
        for i in start..end {
            set(code, i);
            set(kept, i);
        }
    }
    modules
}

fn find(code: &[char], from: usize, what: &str) -> Option<usize> {
    (from..code.len()).find(|&i| what.chars().enumerate().all(|(j, c)| code.get(i + j) == Some(&c)))
}

fn slice(code: &[char], from: usize, to: usize) -> String {
    code.iter().take(to).skip(from).collect()
}

/// Just after the item that starts here: its `;`, or the brace that closes its body.
fn item_end(code: &[char], from: usize) -> usize {
    let first = slice(code, from, code.len());
    let has_no_body = ["use ", "const ", "static ", "type "].iter().any(|word| first.trim_start().starts_with(word));
    let mut depth = 0;
    for (i, c) in code.iter().enumerate().skip(from) {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' if depth == 1 && !has_no_body => return i + 1,
            '}' | ')' | ']' => depth -= 1,
            ';' if depth == 0 => return i + 1,
            _ => {}
        }
    }
    code.len()
}

#[derive(Clone, PartialEq)]
enum TokenKind {
    Word(String),
    /// `::`
    Separator,
    Other(char),
}

fn tokens(code: &[char]) -> Vec<TokenKind> {
    let mut out = Vec::new();
    let mut chars = code.iter().copied().peekable();
    while let Some(c) = chars.next() {
        if is_word(c) {
            let mut word = String::from(c);
            while let Some(next) = chars.next_if(|&next| is_word(next)) {
                word.push(next);
            }
            out.push(TokenKind::Word(word));
        } else if c == ':' && chars.next_if_eq(&':').is_some() {
            out.push(TokenKind::Separator);
        } else if !c.is_whitespace() {
            out.push(TokenKind::Other(c));
        }
    }
    out
}

/// `src/a/b.rs` and `src/a/b/mod.rs` are `crate::a::b`.
fn module_of(path: &str) -> Vec<String> {
    let inner = path.strip_prefix("src/").unwrap_or(path).trim_end_matches(".rs");
    let names = inner.split('/').filter(|name| !matches!(*name, "mod" | "lib" | "main"));
    std::iter::once("crate").chain(names).map(str::to_owned).collect()
}

fn paths(tokens: &[TokenKind], here: &[String]) -> Vec<String> {
    let mut imports = HashMap::new();
    let mut found = Vec::new();
    let mut inline = Vec::new();
    let mut i = 0;
    while let Some(token) = tokens.get(i) {
        let TokenKind::Word(word) = token else {
            i += 1;
            continue;
        };
        if word == "use" {
            i += 1;
            unfold(tokens, &mut i, Vec::new(), &mut |path, name| {
                let path = absolute(path, here);
                imports.insert(name, path.clone());
                found.push(path);
            });
            continue;
        }
        let mut path = vec![word.clone()];
        i += 1;
        while let (Some(TokenKind::Separator), Some(TokenKind::Word(next))) = (tokens.get(i), tokens.get(i + 1)) {
            path.push(next.clone());
            i += 2;
        }
        // Names of lints look like paths.
        if path.len() > 1 && !["clippy", "rustdoc"].contains(&word.as_str()) {
            inline.push(path);
        }
    }
    for path in inline {
        let imported = path.first().and_then(|first| imports.get(first));
        found.push(match imported {
            Some(full) => full.iter().chain(path.iter().skip(1)).cloned().collect(),
            None => absolute(path, here),
        });
    }
    found.into_iter().map(|path| path.join("::")).collect()
}

/// Walks one `use` tree and tells each path with the name that it gets here.
fn unfold(tokens: &[TokenKind], i: &mut usize, mut path: Vec<String>, tell: &mut impl FnMut(Vec<String>, String)) {
    loop {
        match tokens.get(*i) {
            Some(TokenKind::Word(word)) if word == "as" => {
                if let Some(TokenKind::Word(name)) = tokens.get(*i + 1) {
                    tell(path, name.clone());
                }
                *i += 2;
                return;
            }
            Some(TokenKind::Word(word)) => path.push(word.clone()),
            Some(TokenKind::Separator) => {}
            Some(TokenKind::Other('*')) => path.push("*".into()),
            Some(TokenKind::Other('{')) => {
                *i += 1;
                while !matches!(tokens.get(*i), None | Some(TokenKind::Other('}'))) {
                    unfold(tokens, i, path.clone(), tell);
                    if tokens.get(*i) == Some(&TokenKind::Other(',')) {
                        *i += 1;
                    }
                }
                *i += 1;
                return;
            }
            _ => {
                if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                    path.pop();
                }
                if let Some(name) = path.last().cloned() {
                    tell(path, name);
                }
                return;
            }
        }
        *i += 1;
    }
}

fn absolute(path: Vec<String>, here: &[String]) -> Vec<String> {
    let mut base = here.to_vec();
    let mut rest = path.as_slice();
    match rest.split_first() {
        Some((first, tail)) if first == "self" => rest = tail,
        Some((first, _)) if first == "super" => {}
        _ => return path,
    }
    while let Some((first, tail)) = rest.split_first() {
        if first != "super" {
            break;
        }
        base.pop();
        rest = tail;
    }
    base.into_iter().chain(rest.iter().cloned()).collect()
}

fn methods(tokens: &[TokenKind]) -> Vec<String> {
    let pairs = tokens.iter().zip(tokens.iter().skip(1));
    let called = pairs.filter_map(|pair| match pair {
        (TokenKind::Other('.'), TokenKind::Word(name)) => Some(name.clone()),
        _ => None,
    });
    called.collect()
}

fn declared(tokens: &[TokenKind]) -> Vec<String> {
    let pairs = tokens.iter().zip(tokens.iter().skip(1));
    let modules = pairs.filter_map(|pair| match pair {
        (TokenKind::Word(word), TokenKind::Word(name)) if word == "mod" => Some(name.clone()),
        _ => None,
    });
    modules.collect()
}
