"""What a command line names, as objects; and what it asks for, as a report.

model.py                  a file that defines ``model``, or ``build()``, or one nn.Module; and maybe ``example_inputs``
model.py:name             that object of the file: a module, a class of modules, or a function that makes one
package.module:name       the same in an importable module
program.txt               a printed program
"""
