"""A vision-language model that segments what it names, trained by reward through TRL's GRPOTrainer.

sources       real pictures: photographs and handwritten digits
scenes        pictures of two shapes or digits, the questions about them, the masks they are scored with
words         the processor: a vocabulary of words and a PIL image processor, made here and not downloaded
model         LLaVA from configuration, with a mask head that the hidden state of [SEG] drives
warm_start    supervision: learn to name and outline *some* shape of the picture, under sg.Guard
rewards       format, named object, mask IoU
task          warm start, then GRPO under sg.attach, measured before and after
study         why it can stay flat: controls and one change at a time
picture       reward curves, and masks drawn over the pictures
"""
