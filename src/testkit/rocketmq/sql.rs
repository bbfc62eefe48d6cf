//! Filters: tags, and as much of SQL92 as filters have: comparisons of properties with literals, `IS [NOT] NULL`,
//! `[NOT] IN`, `[NOT] BETWEEN`, joined by `AND`, `OR`, `NOT` and parentheses.

use std::cmp::Ordering;

use crate::rocketmq::wire::pb;

/// What a consumer wants.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filter {
    All,
    Tags(Vec<String>),
    Sql(Condition),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Condition {
    Or(Box<Self>, Box<Self>),
    And(Box<Self>, Box<Self>),
    Not(Box<Self>),
    IsNull(Term),
    Compare(Term, &'static str, Term),
    In(Term, Vec<Term>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Term {
    Property(String),
    Text(String),
    Number(f64),
}

impl Filter {
    /// `None` for an expression that cannot be read.
    pub(super) fn of(filter: &pb::FilterExpression) -> Option<Self> {
        let expression = filter.expression.trim();
        if filter.type_.enum_value_or_default() == pb::FilterType::SQL {
            let mut parser = Parser { words: words(expression)?, at: 0 };
            let condition = parser.either()?;
            return (parser.at == parser.words.len()).then_some(Self::Sql(condition));
        }
        Some(match expression {
            "" | "*" => Self::All,
            tags => Self::Tags(tags.split("||").map(|tag| tag.trim().to_owned()).collect()),
        })
    }

    pub(super) fn wants(&self, message: &pb::Message) -> bool {
        match self {
            Self::All => true,
            Self::Tags(tags) => {
                let tag = message.system_properties.tag.as_deref().unwrap_or_default();
                tags.iter().any(|wanted| wanted == tag)
            }
            Self::Sql(condition) => condition.holds(message) == Some(true),
        }
    }
}

impl Condition {
    /// `None` is SQL's unknown: a property that is not there, or values that cannot be compared.
    fn holds(&self, message: &pb::Message) -> Option<bool> {
        match self {
            Self::Or(one, other) => match (one.holds(message), other.holds(message)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Self::And(one, other) => match (one.holds(message), other.holds(message)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Self::Not(condition) => condition.holds(message).map(|holds| !holds),
            Self::IsNull(term) => Some(term.value(message).is_none()),
            Self::Compare(one, sign, other) => {
                let order = compare(&one.value(message)?, &other.value(message)?)?;
                Some(match *sign {
                    "=" => order == Ordering::Equal,
                    "<>" => order != Ordering::Equal,
                    "<" => order == Ordering::Less,
                    "<=" => order != Ordering::Greater,
                    ">" => order == Ordering::Greater,
                    _ => order != Ordering::Less,
                })
            }
            Self::In(term, list) => {
                let value = term.value(message)?;
                let equals = |one: &Term| one.value(message).and_then(|one| compare(&value, &one));
                Some(list.iter().any(|one| equals(one) == Some(Ordering::Equal)))
            }
        }
    }
}

impl Term {
    fn value(&self, message: &pb::Message) -> Option<Self> {
        match self {
            Self::Property(name) if name == "TAGS" => message.system_properties.tag.clone().map(Self::Text),
            Self::Property(name) => message.user_properties.get(name).cloned().map(Self::Text),
            literal => Some(literal.clone()),
        }
    }
}

/// Properties are text: beside a number they are read as one.
fn compare(one: &Term, other: &Term) -> Option<Ordering> {
    let number = |term: &Term| match term {
        Term::Number(number) => Some(*number),
        Term::Text(text) => text.parse().ok(),
        Term::Property(_) => None,
    };
    match (one, other) {
        (Term::Text(one), Term::Text(other)) => Some(one.cmp(other)),
        (one, other) => number(one)?.partial_cmp(&number(other)?),
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Word {
    Sign(&'static str),
    Name(String),
    Literal(Term),
}

fn words(text: &str) -> Option<Vec<Word>> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\'' => {
                let (inner, _) = rest.get(1..)?.split_once('\'')?;
                words.push(Word::Literal(Term::Text(inner.to_owned())));
                inner.len() + 2
            }
            '0'..='9' | '-' => {
                let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '-').unwrap_or(rest.len());
                words.push(Word::Literal(Term::Number(rest.get(..end)?.parse().ok()?)));
                end
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                words.push(Word::Name(rest.get(..end)?.to_owned()));
                end
            }
            _ => {
                let sign =
                    ["<>", "<=", ">=", "=", "<", ">", "(", ")", ","].into_iter().find(|s| rest.starts_with(s))?;
                words.push(Word::Sign(sign));
                sign.len()
            }
        };
        rest = rest.get(length..)?.trim_start();
    }
    Some(words)
}

struct Parser {
    words: Vec<Word>,
    at: usize,
}

impl Parser {
    fn keyword(&mut self, keyword: &str) -> bool {
        let found = matches!(self.words.get(self.at), Some(Word::Name(name)) if name.eq_ignore_ascii_case(keyword));
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, wanted: &str) -> bool {
        let found = matches!(self.words.get(self.at), Some(Word::Sign(sign)) if *sign == wanted);
        self.at += usize::from(found);
        found
    }

    fn either(&mut self) -> Option<Condition> {
        let mut condition = self.both()?;
        while self.keyword("or") {
            condition = Condition::Or(Box::new(condition), Box::new(self.both()?));
        }
        Some(condition)
    }

    fn both(&mut self) -> Option<Condition> {
        let mut condition = self.one()?;
        while self.keyword("and") {
            condition = Condition::And(Box::new(condition), Box::new(self.one()?));
        }
        Some(condition)
    }

    fn one(&mut self) -> Option<Condition> {
        if self.keyword("not") {
            return Some(Condition::Not(Box::new(self.one()?)));
        }
        if self.sign("(") {
            let inner = self.either()?;
            return self.sign(")").then_some(inner);
        }
        let term = self.term()?;
        if self.keyword("is") {
            let not = self.keyword("not");
            let condition = self.keyword("null").then_some(Condition::IsNull(term))?;
            return Some(if not { Condition::Not(Box::new(condition)) } else { condition });
        }
        let not = self.keyword("not");
        let condition = if self.keyword("in") {
            let mut list = Vec::new();
            self.sign("(").then_some(())?;
            loop {
                list.push(self.term()?);
                if !self.sign(",") {
                    break;
                }
            }
            self.sign(")").then_some(Condition::In(term, list))?
        } else if self.keyword("between") {
            let low = Condition::Compare(term.clone(), ">=", self.term()?);
            self.keyword("and").then_some(())?;
            Condition::And(Box::new(low), Box::new(Condition::Compare(term, "<=", self.term()?)))
        } else {
            let sign = ["=", "<>", "<=", ">=", "<", ">"].into_iter().find(|sign| self.sign(sign))?;
            Condition::Compare(term, sign, self.term()?)
        };
        Some(if not { Condition::Not(Box::new(condition)) } else { condition })
    }

    fn term(&mut self) -> Option<Term> {
        let term = match self.words.get(self.at)? {
            Word::Name(name) => Term::Property(name.clone()),
            Word::Literal(literal) => literal.clone(),
            Word::Sign(_) => return None,
        };
        self.at += 1;
        Some(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(expression: &str) -> Option<bool> {
        let filter = pb::FilterExpression {
            type_: pb::FilterType::SQL.into(),
            expression: expression.to_owned(),
            ..Default::default()
        };
        let mut message = pb::Message::new();
        message.user_properties.insert("region".to_owned(), "north".to_owned());
        message.user_properties.insert("amount".to_owned(), "12".to_owned());
        Filter::of(&filter).map(|filter| filter.wants(&message))
    }

    #[test]
    fn conditions() {
        for (expression, expected) in [
            ("region = 'north' AND amount > 10", true),
            ("region = 'south' or amount >= 12", true),
            ("not (region = 'north')", false),
            ("region <> 'south'", true),
            ("missing IS NULL AND region IS NOT NULL", true),
            ("missing = 'x'", false),
            ("NOT missing = 'x'", false),
            ("region IN ('east', 'north')", true),
            ("region not in ('east', 'north')", false),
            ("amount BETWEEN 10 AND 12", true),
            ("amount not between 10 and 12", false),
            ("amount < -1.5", false),
        ] {
            assert_eq!(wants(expression), Some(expected), "{expression}");
        }
    }

    #[test]
    fn what_is_no_condition() {
        for expression in ["", "region", "region =", "= 'x'", "(region = 'x'", "region = 'x", "a = 1 b", "a in ()", "?"]
        {
            assert_eq!(wants(expression), None, "{expression}");
        }
    }
}
