"""What a command line names, as objects.

model.py                  a file that defines ``model``, or ``build()``, or one nn.Module; and maybe ``example_inputs``
model.py:name             that object of the file: a module, a class of modules, or a function that makes one
package.module:name       the same in an importable module
program.txt               a printed program
"""

from partitioner.loading.blame import LoadError
from partitioner.loading.inputs import parse_inputs
from partitioner.loading.program import ProgramError, is_program, read_program
from partitioner.loading.target import Target, load_target

__all__ = ["LoadError", "ProgramError", "Target", "is_program", "load_target", "parse_inputs", "read_program"]
