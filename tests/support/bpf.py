"""An interpreter of classic BPF, so that a filter can be asked about calls nobody makes."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

LOAD_WORD = 0x20
AND = 0x54
JUMP = 0x05
JUMP_IF_EQUAL = 0x15
JUMP_IF_NOT_BELOW = 0x35
RETURN = 0x06
BRANCHES = frozenset({JUMP_IF_EQUAL, JUMP_IF_NOT_BELOW})
OPERATIONS = frozenset({LOAD_WORD, AND, JUMP, RETURN}) | BRANCHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    operation: int
    yes: int
    no: int
    operand: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    action: int
    steps: int


def disassemble(program: bytes) -> list[Instruction]:
    return [
        Instruction(operation=operation, yes=yes, no=no, operand=operand)
        for operation, yes, no, operand in struct.iter_unpack("=HBBI", program)
    ]


def successors(position: int, instruction: Instruction) -> frozenset[int]:
    """Where the program may go on after an instruction."""
    match instruction.operation:
        case operation if operation in BRANCHES:
            return frozenset({position + 1 + instruction.yes, position + 1 + instruction.no})
        case operation if operation == RETURN:
            return frozenset()
        case operation if operation == JUMP:
            return frozenset({position + 1 + instruction.operand})
        case _:
            return frozenset({position + 1})


def evaluate(
    program: Sequence[Instruction], *, number: int, arch: int, arguments: Sequence[int] = ()
) -> Answer:
    """Run a filter on one call. Every jump goes forward, so this ends."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("<IIQ6Q", number, arch, 0, *words)
    position = steps = accumulator = 0
    while True:
        instruction = program[position]
        operand = instruction.operand
        position += 1
        steps += 1
        match instruction.operation:
            case operation if operation == LOAD_WORD:
                (accumulator,) = struct.unpack_from("<I", call, operand)
            case operation if operation == AND:
                accumulator &= operand
            case operation if operation == JUMP:
                position += operand
            case operation if operation == JUMP_IF_EQUAL:
                position += instruction.yes if accumulator == operand else instruction.no
            case operation if operation == JUMP_IF_NOT_BELOW:
                position += instruction.yes if accumulator >= operand else instruction.no
            case operation if operation == RETURN:
                return Answer(action=operand, steps=steps)
            case operation:
                raise ValueError(f"no operation {operation:#x}")
