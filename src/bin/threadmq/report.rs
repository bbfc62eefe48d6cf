//! The two forms of a result: one JSON object, or lines for people.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

/// A JSON object that keeps the order of its keys.
#[derive(Debug, Default)]
pub struct Object(Vec<(&'static str, Value)>);

impl Object {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((key, value.into()));
        self
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (index, (key, value)) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            // Keys are plain words.
            write!(f, "\"{key}\":{value}")?;
        }
        f.write_char('}')
    }
}

/// Rounded to so many decimals.
pub fn rounded(number: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (number * scale).round() / scale
}

pub fn millis(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e3, 3)
}

/// With spaces between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Labels on the left, values on the right.
pub fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (label, value) in rows {
        let _ = writeln!(out, "  {label:<width$}  {value}");
    }
    out
}

/// A reader of our output that is gone is no reason to panic.
pub fn print(text: impl fmt::Display) {
    let mut out = io::stdout().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}

/// The result in the form that was asked for.
pub fn print_result(json: bool, object: &Object, text: &str) {
    if json {
        print(format_args!("{object}\n"));
    } else {
        print(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_json_in_order() {
        let object = Object::new().with("z", 1).with("a", "x\"y").with("n", None::<u64>).with("f", f64::NAN);
        assert_eq!(object.to_string(), r#"{"z":1,"a":"x\"y","n":null,"f":null}"#);
        assert!(serde_json::from_str::<Value>(&object.to_string()).is_ok());
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1234), "1 234");
        assert_eq!(grouped(1_234_567), "1 234 567");
        assert_eq!(rounded(1.23456, 2), 1.23);
        assert_eq!(millis(Duration::from_micros(1500)), 1.5);
    }
}
