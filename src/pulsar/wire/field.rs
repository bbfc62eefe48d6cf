//! Fields of protobuf messages, read from slices and appended to vectors.

use super::frame::{WORD, WireError};

/// The fields of one message in the order they come, unknown ones included.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// The value of a field as the wire shows it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A fixed-width number: no field that we read by hand is one, so it is only stepped over.
    Fixed,
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next field's number and value. Groups are refused: the protocol has none, and they could nest.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| WireError::BadProtobuf)?;
        let number = tag >> 3;
        if number == 0 {
            return Err(WireError::BadProtobuf);
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| WireError::BadProtobuf)?;
                Value::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(WireError::BadProtobuf),
        };
        Ok(Some((number, value)))
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(WireError::BadProtobuf)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        let mut shift = 0u32;
        while let [byte, rest @ ..] = self.rest {
            self.rest = rest;
            // The tenth byte holds the last bit of 64.
            if shift == 63 && *byte > 1 {
                break;
            }
            value |= u64::from(*byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
        Err(WireError::BadProtobuf)
    }
}

/// The last value of field `number`, which is the one that counts.
pub(super) fn last_field(message: &[u8], number: u32) -> Result<Option<Value<'_>>, WireError> {
    let mut fields = Fields::new(message);
    let mut found = None;
    while let Some((at, value)) = fields.next()? {
        if at == number {
            found = Some(value);
        }
    }
    Ok(found)
}

impl<'a> Value<'a> {
    pub(super) fn u64(self) -> Result<u64, WireError> {
        match self {
            Self::Varint(value) => Ok(value),
            Self::Bytes(_) | Self::Fixed => Err(WireError::BadProtobuf),
        }
    }

    /// Numbers that do not fit lose their upper bits, as everywhere in protobuf.
    pub(super) fn u32(self) -> Result<u32, WireError> {
        self.u64().map(|value| value as u32)
    }

    pub(super) fn i32(self) -> Result<i32, WireError> {
        self.u64().map(|value| value as i32)
    }

    pub(super) fn i64(self) -> Result<i64, WireError> {
        self.u64().map(|value| value as i64)
    }

    pub(super) fn bool(self) -> Result<bool, WireError> {
        self.u64().map(|value| value != 0)
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], WireError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Fixed => Err(WireError::BadProtobuf),
        }
    }

    /// Bytes that are no UTF-8 are replaced: some clients put any bytes into strings, and a property that
    /// cannot be read must not cost the user the message.
    pub(super) fn text(self) -> Result<String, WireError> {
        self.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Hands the numbers of a repeated field to `each`, in the plain and in the packed form.
    pub(super) fn repeated(self, mut each: impl FnMut(u64)) -> Result<(), WireError> {
        match self {
            Self::Varint(value) => each(value),
            Self::Bytes(packed) => {
                let mut numbers = Fields::new(packed);
                while !numbers.rest.is_empty() {
                    each(numbers.varint()?);
                }
            }
            Self::Fixed => return Err(WireError::BadProtobuf),
        }
        Ok(())
    }
}

#[inline]
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(super) fn put_u64(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3);
    put_varint(out, value);
}

pub(super) fn put_i32(out: &mut Vec<u8>, number: u32, value: i32) {
    put_u64(out, number, i64::from(value) as u64);
}

pub(super) fn put_bool(out: &mut Vec<u8>, number: u32, value: bool) {
    put_u64(out, number, u64::from(value));
}

pub(super) fn put_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_bytes_header(out, number, value.len());
    out.extend_from_slice(value);
}

/// Tag and length; the caller appends that many bytes.
pub(super) fn put_bytes_header(out: &mut Vec<u8>, number: u32, len: usize) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, len as u64);
}

/// Appends a message as field `number`. Its length is known only afterwards: one byte is left for it, and the
/// rare longer message is moved to make room.
#[inline]
pub(super) fn put_message(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_varint(out, u64::from(number) << 3 | 2);
    let mark = out.len();
    out.push(0);
    write(out);
    let len = out.len() - mark - 1;
    if len < 0x80 {
        if let Some(byte) = out.get_mut(mark) {
            *byte = len as u8;
        }
    } else {
        let mut prefix = Vec::with_capacity(5);
        put_varint(&mut prefix, len as u64);
        out.splice(mark..=mark, prefix);
    }
}

/// Leaves room for a length or checksum word and says where it is.
#[inline]
pub(super) fn reserve_word(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; WORD]);
    at
}

/// Fills in a word that [`reserve_word`] left.
#[inline]
pub(super) fn set_word(out: &mut [u8], at: usize, value: u32) {
    if let Some(word) = out.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<WORD>()) {
        *word = value.to_be_bytes();
    }
}

/// Fills in a length word with the number of bytes that follow it.
#[inline]
pub(super) fn set_length(out: &mut [u8], at: usize) {
    set_word(out, at, out.len().saturating_sub(at + WORD) as u32);
}
